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
from .collectives import all_gather, bytes_of, carrier, normal_mode, plain
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
            rows = _gather(
                json.dumps(head, separators=(",", ":")).encode(), [t for t in sent if t.device.type == "cpu"]
            )
        heads = [json.loads(ctypes.string_at(row.data_ptr() + _SIZES.size, _sizes(row)[1])) for row in rows]
        _compare(heads)
        found = _unpack(rows, heads, _gather_from_devices([t for t in sent if t.device.type != "cpu"], heads))
    parts = [_take_part(each, of_rank) for each, of_rank in zip(heads, found)]
    _alight(boarded, heads, found)
    return parts


def _spec(tensor: torch.Tensor) -> tuple[str, list[int], bool]:
    return str(tensor.dtype)[len("torch.") :], list(tensor.shape), tensor.device.type == "cpu"


def _gather(head: bytes, data: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """All-gather the heads, and what travels by way of the CPU, in as much as was needed lately; then the rest, if
    this is more."""
    start = _aligned(_SIZES.size + len(head))
    size = start + sum(_aligned(_nbytes(tensor)) for tensor in data)
    slot = max(_largest)
    row = torch.empty(max(size, slot), dtype=torch.uint8)
    ctypes.memmove(row.data_ptr(), _SIZES.pack(size, len(head)) + head, _SIZES.size + len(head))
    _lay(row, start, data)
    rows = all_gather(row[:slot]).unbind(0)
    largest = max(_sizes(each)[0] for each in rows)
    if largest > slot:
        rest = torch.empty(largest - slot, dtype=torch.uint8)
        rest[: max(0, size - slot)] = row[slot:size]
        rows = torch.cat([torch.stack(rows), all_gather(rest)], 1).unbind(0)
    # Heads vary by some bytes (numbers of different lengths).
    _largest.append(min(_aligned(largest) + 64, _MOST_AT_ONCE))
    return rows


def _gather_from_devices(data: Sequence[torch.Tensor], heads: Sequence[Any]) -> Sequence[torch.Tensor]:
    """All-gather what travels from device to device, whose shapes the heads told without waiting for a device."""
    largest = max(sum(_aligned(_spec_bytes(spec)) for spec in head["specs"] if not spec[2]) for head in heads)
    if not largest:
        return [torch.empty(0, dtype=torch.uint8)] * len(heads)
    row = torch.empty(largest, dtype=torch.uint8, device=world.device())
    _lay(row, 0, data)
    return all_gather(row).unbind(0)


def _lay(row: torch.Tensor, start: int, tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        row[start : start + _nbytes(tensor)] = bytes_of(tensor)
        start += _aligned(_nbytes(tensor))


def _unpack(rows: Sequence[torch.Tensor], heads: Sequence[Any], on_device: Sequence[torch.Tensor]) -> list[Any]:
    """Each rank's tensors, as views of the rows in which they came."""
    found = []
    for row, head, other in zip(rows, heads, on_device):
        starts = {True: _aligned(_SIZES.size + _sizes(row)[1]), False: 0}
        tensors = []
        for spec in head["specs"]:
            name, shape, on_cpu = spec
            start, size, dtype = starts[on_cpu], _spec_bytes(spec), getattr(torch, name)
            source = row if on_cpu else other
            part = source[start : start + size].view(dtype) if size else source.new_empty(0, dtype=dtype)
            tensors.append(part.view(shape))
            starts[on_cpu] += _aligned(size)
        found.append(tensors)
    return found


def _sizes(payload: torch.Tensor) -> tuple[int, int]:
    size, head = _SIZES.unpack(ctypes.string_at(payload.data_ptr(), _SIZES.size))
    return size, head


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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
