"""The one channel by which ranks tell each other values: an all-gather of tensors and notes that may differ in size.

Every rank runs every line, so every rank gets to each exchange, and all to the same one. Should ranks diverge all the
same, they find out here: a message tells what it is, and where in the script. Messages of all kinds have the same form,
so ranks that meet in different exchanges understand each other well enough to say so, instead of waiting for ever.
"""

from __future__ import annotations

import collections
import ctypes
import json
import math
import struct
import threading
from collections.abc import Hashable, Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch._compile import _disable_dynamo

from . import codec, watchdog, world
from .collectives import all_gather_rows, bytes_of, carrier, normal_mode, plain, swap_rows
from .place import Place, here

_ALIGN = 16  # bytes: tensors start where any dtype may
_SIZES = struct.Struct("qq")  # bytes of the message, of its head
_FIRST_SLOT = 4096
_MOST_AT_ONCE = 1 << 22  # bytes: what is larger (a list of a million files) must not make the next ones as large
_REMEMBERED = 8  # messages: the largest of the latest ones is how much is sent before anything is known


class Part(NamedTuple):
    """What one rank told."""

    tensors: list[torch.Tensor]
    note: Any = None


class Passenger(NamedTuple):
    """A small tensor that travels with whatever exchange comes next."""

    tensor: torch.Tensor
    arrive: Callable[[list[torch.Tensor]], None]
    """Is given each rank's."""


class Divergence(RuntimeError):  # noqa: N818 - what has happened, as in KeyboardInterrupt
    """The ranks are in different places of the script, or have different values where these must be the same."""


#: By a key that is the same on all ranks. A thread that reads ahead may add some earlier on one rank than on another:
#: what not all have is left for later.
passengers: dict[Hashable, Passenger] = {}

_largest: collections.deque[int] = collections.deque([_FIRST_SLOT], maxlen=_REMEMBERED)
_count = 0
_lock = threading.RLock()  # a thread that reads ahead may take part, as long as it is in the same order on all ranks


@_disable_dynamo
def exchange(kind: str, tensors: Sequence[torch.Tensor] = (), note: Any = None) -> list[Part]:
    """Tell all ranks this rank's tensors and note, and be told theirs. A collective.

    Args:
        kind: what is exchanged, in words for an error message; the same on all ranks.
        tensors: strided tensors of any shapes and dtypes, on the CPU or this rank's device.
        note: a plain value (`codec.pack`).

    Returns:
        Each rank's part, in rank order. Its tensors lie where they travelled: on `carrier(device)`.

    Raises:
        Divergence: the ranks are in different exchanges; says in which, and on which lines.
    """
    global _count
    with _lock:
        _count += 1
        return _exchange(kind, tensors, note, here())


def _exchange(kind: str, tensors: Sequence[torch.Tensor], note: Any, place: Place) -> list[Part]:
    boarded = dict(passengers)
    extra: list[torch.Tensor] = []
    packed = codec.pack(note, extra)
    with torch.no_grad(), normal_mode():
        sent = [plain(tensor) for tensor in (*tensors, *extra, *(each.tensor for each in boarded.values()))]
        sent = [tensor.to(carrier(tensor.device)) for tensor in sent]
        head = {
            "kind": kind,
            "count": _count,
            "place": place,
            "specs": [_spec(tensor) for tensor in sent],
            "note": packed,
            "extra": len(extra),
            "boarded": [repr(key) for key in boarded],
        }
        with watchdog.Waiting(f"{kind} (exchange {_count})", place.line):
            payloads = _gather(json.dumps(head, separators=(",", ":")).encode(), sent)
        heads = [json.loads(payload.head) for payload in payloads]
        _compare(heads)
        found = [payload.tensors(each["specs"]) for payload, each in zip(payloads, heads)]
        _gather_from_devices(sent, heads, found)
    parts = [_take_part(each, of_rank) for each, of_rank in zip(heads, found)]
    _alight(boarded, heads, found)
    return parts


def _spec(tensor: torch.Tensor) -> tuple[str, list[int], bool]:
    return str(tensor.dtype)[len("torch.") :], list(tensor.shape), tensor.device.type == "cpu"


class _Payload(NamedTuple):
    memory: torch.Tensor
    head: bytes

    def tensors(self, specs: Sequence[Any]) -> list[Any]:
        """Views of the memory; None where the tensor travels from device to device."""
        found: list[torch.Tensor | None] = []
        offset = _aligned(_SIZES.size + len(self.head))
        for name, shape, on_cpu in specs:
            dtype = getattr(torch, name)
            size = math.prod(shape) * dtype.itemsize if on_cpu else 0
            if size:
                found.append(self.memory[offset : offset + size].view(dtype).view(shape))
            else:
                found.append(torch.empty(shape, dtype=dtype) if on_cpu else None)
            offset += _aligned(size)
        return found


def _gather(head: bytes, data: Sequence[torch.Tensor]) -> list[_Payload]:
    """All-gather the heads, and what travels by way of the CPU, in as much as was needed lately; then the rest, if
    this is more."""
    data = [tensor for tensor in data if tensor.device.type == "cpu" and tensor.numel()]
    start = _aligned(_SIZES.size + len(head))
    size = start + sum(_aligned(_nbytes(tensor)) for tensor in data)
    slot = max(_largest)
    payload = torch.empty(max(size, slot), dtype=torch.uint8)
    ctypes.memmove(payload.data_ptr(), _SIZES.pack(size, len(head)) + head, _SIZES.size + len(head))
    for tensor in data:
        payload[start : start + _nbytes(tensor)] = bytes_of(tensor)
        start += _aligned(_nbytes(tensor))
    rows = _all_gather(payload[:slot])
    largest = max(_sizes(row)[0] for row in rows)
    if largest > slot:
        rest = torch.empty(largest - slot, dtype=torch.uint8)
        rest[: max(0, size - slot)] = payload[slot:size]
        rows = [torch.cat(both) for both in zip(rows, _all_gather(rest))]
    # Heads vary by some bytes (numbers of different lengths).
    _largest.append(min(_aligned(largest) + 64, _MOST_AT_ONCE))
    heads = [ctypes.string_at(row.data_ptr() + _SIZES.size, _sizes(row)[1]) for row in rows]
    return [_Payload(row, head) for row, head in zip(rows, heads)]


def _all_gather(row: torch.Tensor) -> list[torch.Tensor]:
    device = carrier(row.device)
    if device.type != "cpu":  # the script's own process group knows CUDA alone
        return [each.cpu() for each in all_gather_rows(row.to(device))]
    return swap_rows(row)


def _sizes(payload: torch.Tensor) -> tuple[int, int]:
    size, head = _SIZES.unpack(ctypes.string_at(payload.data_ptr(), _SIZES.size))
    return size, head


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gather_from_devices(sent: Sequence[torch.Tensor], heads: Sequence[Any], found: list[list[Any]]) -> None:
    """All-gather what travels from device to device, whose shapes the heads told without waiting for a device."""
    sizes = [[_spec_bytes(spec) for spec in head["specs"] if not spec[2]] for head in heads]
    largest = max(sum(map(_aligned, each)) for each in sizes)
    if not largest:
        return
    own = [tensor for tensor in sent if tensor.device.type != "cpu"]
    payload = torch.empty(largest, dtype=torch.uint8, device=world.device())
    offset = 0
    for tensor in own:
        payload[offset : offset + _nbytes(tensor)] = bytes_of(tensor)
        offset += _aligned(_nbytes(tensor))
    for row, head, tensors in zip(all_gather_rows(payload), heads, found):
        offset = 0
        for index, (name, shape, on_cpu) in enumerate(head["specs"]):
            if not on_cpu:
                size = _spec_bytes((name, shape, on_cpu))
                dtype = getattr(torch, name)
                tensors[index] = (
                    row[offset : offset + size].view(dtype).view(shape) if size else row.new_empty(shape, dtype=dtype)
                )
                offset += _aligned(size)


def _spec_bytes(spec: Any) -> int:
    size: int = math.prod(spec[1]) * getattr(torch, spec[0]).itemsize
    return size


def _take_part(head: Any, tensors: list[torch.Tensor]) -> Part:
    end = len(tensors) - len(head["boarded"])
    start = end - head["extra"]
    return Part(tensors[:start], codec.unpack(head["note"], tensors[start:end]))


def _alight(boarded: dict[Hashable, Passenger], heads: Sequence[Any], found: Sequence[list[torch.Tensor]]) -> None:
    """Hand over the passengers that all ranks have sent."""
    everywhere = set.intersection(*(set(head["boarded"]) for head in heads))
    for key, passenger in boarded.items():
        if repr(key) in everywhere:
            del passengers[key]
            places = [
                len(of_rank) - len(head["boarded"]) + head["boarded"].index(repr(key))
                for head, of_rank in zip(heads, found)
            ]
            passenger.arrive([of_rank[place] for place, of_rank in zip(places, found)])


def _compare(heads: Sequence[Any]) -> None:
    """Raise `Divergence` unless all ranks are in one and the same exchange."""
    if len({(head["kind"], head["count"], head["place"][1]) for head in heads}) == 1:
        return
    places = [
        f"rank {rank} at {Place(*head['place']).line or 'an unknown line'}: {head['kind']}"
        for rank, head in enumerate(heads)
    ]
    raise Divergence(
        "the ranks have diverged: " + "; ".join(places) + ". Each rank must run every line: what decides on the way "
        "there has to be the same on all of them (ddp.broadcast gives all ranks rank 0's value)"
    )
