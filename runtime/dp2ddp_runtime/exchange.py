"""All-gathering tensors whose sizes differ between ranks, in one collective where the sizes can be foreseen."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable

import torch

from .collectives import all_gather_rows, carrier, new_rows, start_all_gather
from .payload import (
    SIZES,
    Part,
    aligned,
    completed,
    fill,
    lay_out,
    nbytes,
    packed,
    read,
    read_control,
    sizes,
    spec_bytes,
    unpack,
)

_FIRST_SLOT = 16384
_MOST_KEYS = 256


class Pending:
    """An exchange that is under way. It may be dropped: all ranks have sent theirs, so none waits for another."""

    def __init__(self, finish: Callable[[], list[Part]]) -> None:
        self._finish = finish

    def wait(self) -> list[Part]:
        """Each rank's part, in rank order, as views of one buffer. To be called once, in the same order on all ranks:
        a payload larger than foreseen takes a second collective."""
        with normal_mode():
            return self._finish()


@dataclasses.dataclass
class Sending:
    """A collective that is under way: what this rank sends, and where it receives each rank's."""

    payload: torch.Tensor
    received: list[torch.Tensor]
    work: Any


class Exchange:
    """An all-gather of `Part`s whose sizes differ between ranks and calls.

    CPU tensors travel as bytes behind a head that tells their shapes, in slots of the size that the last such call
    needed; only when that was too small a second collective follows. CUDA tensors travel by themselves, so
    that the shapes can be read without waiting for the device.

    A head is mostly the same as in the last call, so each is parsed once. What must not be shared between calls
    (notes that aren't plain values, sparse tensors) is pickled among the data.

    Args:
        group: a gloo group for all of it, CUDA tensors too; by default the default group.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._slots: dict[Hashable, int] = {}

    def __call__(self, part: Part, device: torch.device, key: Hashable = None) -> list[Part]:
        """`start` and `Pending.wait` in one."""
        return self.start(part, device, key).wait()

    def start(self, part: Part, device: torch.device, key: Hashable = None) -> Pending:
        """Send this rank's part; the result's `wait` gives every rank's, on `carrier(device)`.

        Args:
            part: this rank's part. Its tensors must stay as they are until then.
            device: where the tensors live. Must be of the same kind on all ranks.
            key: calls with the same key need about the same space. Must be equal on all ranks.
        """
        self._forget_old_keys()
        with normal_mode():
            route = self._route(device)
            head, data, rest = packed(part)
            sent = [tensor.to(route) for tensor in data]
            if route.type == "cpu":
                sending = self._send(head, [*sent, *rest], key)
                return Pending(lambda: [unpack(payload) for payload in self._receive(sending, key)])
            control = self._send(head, rest, key)
            return Pending(lambda: _gather_device(self._receive(control, key), sent, route))

    def _route(self, device: torch.device) -> torch.device:
        return carrier(device) if self._group is None else torch.device("cpu")

    def _forget_old_keys(self) -> None:
        """Before each call, so that all ranks do so at the same one."""
        if len(self._slots) > _MOST_KEYS:
            self._slots.clear()

    def _slot(self, key: Hashable) -> int:
        return self._slots.get(key, _FIRST_SLOT)

    def _send(self, head: bytes, data: Sequence[torch.Tensor], key: Hashable) -> Sending:
        start = aligned(SIZES.size + len(head))
        size = start + sum(aligned(nbytes(tensor)) for tensor in data)
        slot = self._slot(key)
        payload = torch.empty(max(size, slot), dtype=torch.uint8)
        fill(payload, SIZES.pack(size, len(head)) + head, start, data)
        return Sending(payload, *self._start(payload[:slot]))

    def _start(self, row: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
        rows = new_rows(row)
        return rows, start_all_gather(rows, row, self._group)

    def _receive(self, sending: Sending, key: Hashable) -> list[torch.Tensor]:
        sending.work.wait()
        payload, received = sending.payload, sending.received
        largest = max(sizes(row)[0] for row in received)
        if largest > len(received[0]):
            payload = payload if len(payload) >= largest else torch.cat([payload, payload.new_empty(largest)])
            received, work = self._start(payload[:largest])
            work.wait()
        # The heads' sizes vary by some bytes (numbers of different lengths).
        self._slots[key] = aligned(largest) + 64
        return received


def normal_mode() -> AbstractContextManager[Any]:
    """Out of inference mode: gloo writes from a thread of its own, which inference tensors don't allow."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def _gather_device(told: list[torch.Tensor], data: list[torch.Tensor], device: torch.device) -> list[Part]:
    controls = [read_control(payload) for payload in told]
    largest = max(sum(aligned(spec_bytes(spec)) for spec in control.head.specs) for control in controls)
    payload = torch.empty(largest, dtype=torch.uint8, device=device)
    rows = [payload] * len(controls)
    if largest:
        lay_out(payload, 0, data)
        rows = all_gather_rows(payload)
    return [
        completed(read(row, 0, head.specs)[0], head, heads, offset)
        for row, (head, heads, offset) in zip(rows, controls)
    ]
