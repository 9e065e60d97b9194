"""Exchanges that are mostly like the one before, as a model's outputs are from step to step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from . import mesh
from .collectives import new_rows, start_all_gather
from .exchange import Exchange, Sending, normal_mode
from .payload import Part, head_of, memory_of, packed, signature, unpack, whole_head

_LARGEST_KEPT = mesh.LARGEST  # bytes: for larger ones the copying decides, and there may be many keys


class Repeating(Exchange):
    """An `Exchange` for calls that are mostly like the one before: then only the data is copied, between buffers that
    are there already. What it returns lies in them until the next call with the same key."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes: dict[Hashable, _Lane] = {}

    def __call__(self, part: Part, device: torch.device, key: Hashable = None) -> list[Part]:
        sent = signature(part) if device.type == "cpu" and self._route(device).type == "cpu" else None
        # Taken out, and put back when all went well: nothing else must write where a failed call still receives. And a
        # lane is always the latest call's, so where it tells the same, the next slot is the same, too.
        lane = self._lanes.pop(key, None)
        if sent is None:
            return super().__call__(part, device, key)
        self._forget_old_keys()
        with normal_mode():
            if lane is not None and lane.sent == sent and lane.slot == self._slot(key):
                lane.send(part)
                lane.sending.work.wait()
                if not lane.told_the_same():
                    lane = self._open(lane.sending, sent, key)
            else:
                head, data, _ = packed(part)
                lane = self._open(self._send(head, data, key), sent, key)
            if lane.reusable:
                self._lanes[key] = lane
            return lane.parts

    def _forget_old_keys(self) -> None:
        super()._forget_old_keys()
        if not self._slots:
            self._lanes.clear()

    def _start(self, row: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
        rows = new_rows(row)
        return rows, _start(rows, row)

    def _open(self, sending: Sending, sent: Any, key: Hashable) -> _Lane:
        """Read what was received, so that it can be kept for the next call."""
        received = self._receive(sending, key)
        lane = _Lane(Sending(sending.payload, received, sending.work), sent)
        lane.reusable &= received is sending.received  # else it took a second gathering, and these are its rows
        return lane


class _Lane:
    """The buffers of the latest call with some key, and what was read in them."""

    def __init__(self, sending: Sending, sent: Any) -> None:
        self.sending = sending
        self.sent = sent
        self.slot = len(sending.received[0])
        self.parts = [unpack(row) for row in sending.received]
        heads = [whole_head(row) for row in sending.received]
        heads_say_all = not any(head_of(row)[0].rest for row in sending.received)
        self.reusable = heads_say_all and self.slot <= _LARGEST_KEPT
        self._heads = [(memory_of(row)[: len(head)], head) for row, head in zip(sending.received, heads)]
        self._mine = unpack(sending.payload).tensors

    def send(self, part: Part) -> None:
        """Send a part of the same signature."""
        for mine, tensor in zip(self._mine, part.tensors):
            mine.copy_(tensor.detach())
        row = self.sending.payload[: self.slot]
        work = self.sending.work
        self.sending.work = work.start() if isinstance(work, mesh.Gathering) else _start(self.sending.received, row)

    def told_the_same(self) -> bool:
        """Whether all ranks' parts were laid out as before: then `parts` shows the new ones."""
        return all(memory.tobytes() == head for memory, head in self._heads)


def _start(rows: list[torch.Tensor], row: torch.Tensor) -> Any:
    """Start gathering rows, over the mesh if it is there and they are small."""
    connected = mesh.joined() if len(row) <= mesh.LARGEST else None
    return start_all_gather(rows, row) if connected is None else connected.start(rows, row)
