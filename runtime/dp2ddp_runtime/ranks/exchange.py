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
import os
import struct
import threading
from collections.abc import Hashable, Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch.nn.functional import pad

from ..base import codec, waiting, world
from ..base.location import Location, here
from ..base.uncompiled import uncompiled
from . import signals
from .collectives import all_gather, broadcast, bytes_of, plain, transport_device

_encode = json.JSONEncoder(separators=(",", ":")).encode
_SIZES = struct.Struct("qq")  # bytes of the message, of its head
_FIRST_SLOT = 4096
_NOTHING = torch.empty(0, dtype=torch.uint8)
_MOST_AT_ONCE = 1 << 22  # bytes: what is larger (a list of a million files) must not make the next ones as large


class Piggybacked(NamedTuple):
    """A small tensor that travels with whatever exchange comes next."""

    tensor: torch.Tensor
    arrive: Callable[[list[torch.Tensor]], None]  # is given each rank's


class Divergence(RuntimeError):  # noqa: N818 - what has happened, as in KeyboardInterrupt
    """The ranks are in different places of the script, or have different values where these must be the same."""


#: By a key that is the same on all ranks. A thread that reads ahead may add some earlier on one rank than on another:
#: what not all have is left for later.
piggybacked: dict[Hashable, Piggybacked] = {}

# The bytes that the latest messages needed. As many as the second largest of them are sent before anything is known:
# what comes time and again fits, and a single large one makes no others as large.
_needed = collections.deque([_FIRST_SLOT] * 2, maxlen=8)
_count = 0
_lock = threading.RLock()  # a thread that reads ahead may take part, as long as it is in the same order on all ranks


@uncompiled
def exchange(kind: str, value: Any = None) -> list[Any]:
    """Tell all ranks this rank's value, and be told theirs, in rank order. A collective.

    Args:
        kind: what is exchanged, in words for an error message; the same on all ranks.
        value: a plain value (`codec.dumps`). Tensors in it may be strided ones of any shapes and dtypes, on the CPU or
            this rank's device; they come to `transport_device(device)`.

    Raises:
        Divergence: the ranks are in different exchanges; says in which, and on which lines.
        RuntimeError: this is a child process of a rank.
    """
    if os.getpid() != world.current().pid:
        raise RuntimeError(f"{kind} was called in a child process of rank {world.rank()}: the ranks meet in their own")
    with torch.inference_mode(False):
        told, noted = _exchange(kind, value)
    signals.handle(noted)
    return told


def _exchange(kind: str, value: Any) -> tuple[list[Any], list[Sequence[int]]]:
    """What the ranks tell, and the signals that each has noted."""
    global _count
    with _lock:
        _count += 1
        carried, location = dict(piggybacked), here()
        tensors: list[torch.Tensor] = []
        text = codec.dumps(value, tensors)
        others = codec.dumps({repr(key): each.tensor for key, each in carried.items()}, tensors)
        sent = [plain(tensor).to(transport_device(tensor.device)) for tensor in tensors]
        specs = [(str(each.dtype)[len("torch.") :], list(each.shape), each.device.type == "cpu") for each in sent]
        head = _encode([kind, _count, location, specs, signals.noted()])
        with waiting.Waiting(f"{kind} (exchange {_count})"):
            message = _message([head, text, others], [each for each in sent if each.device.type == "cpu"])
            rows = _gather(message)
        texts, values, small = zip(*map(_texts, rows))
        known = {text: _Head(*json.loads(text)) for text in set(texts)}  # of most steps all ranks' are the same
        heads = [known[text] for text in texts]
        _compare(heads)
        elsewhere = _gather_from_devices([each for each in sent if each.device.type != "cpu"], heads)
        came = [_tensors(*each) for each in zip(heads, rows, elsewhere)]
        told = [codec.loads(each, theirs) for each, theirs in zip(values, came)]
        if carried:
            _arrive(carried, [codec.loads(each, theirs) for each, theirs in zip(small, came)])
    return told, [head.signals for head in heads]


@torch.no_grad()
def _arrive(carried: dict[Hashable, Piggybacked], told: Sequence[dict[str, torch.Tensor]]) -> None:
    for key, each in carried.items():
        if all(repr(key) in theirs for theirs in told):
            del piggybacked[key]
            each.arrive([theirs[repr(key)] for theirs in told])


class _Head(NamedTuple):
    """What comes ahead of a value."""

    kind: str
    number: int  # of the exchange
    location: Sequence[Any]
    specs: Sequence[Any]  # of each tensor: its dtype, its shape, and whether it comes by way of the CPU
    signals: Sequence[int]  # what `signals.noted` is there


def _message(texts: Sequence[str], tensors: Sequence[torch.Tensor]) -> bytearray:
    """The sizes, the head, the value and what is piggybacked as lines of text, and the tensors' bytes."""
    text = "\n".join(texts).encode()
    parts = [(ctypes.c_char * each.nbytes).from_address(each.data_ptr()) for each in tensors if each.nbytes]
    size = _SIZES.size + len(text) + sum(each.nbytes for each in tensors)
    return bytearray().join([_SIZES.pack(size, len(text)), text, *parts])


def _sizes(message: torch.Tensor) -> tuple[int, int]:
    size, text = _SIZES.unpack(ctypes.string_at(message.data_ptr(), _SIZES.size))
    return size, text


def _texts(message: torch.Tensor) -> list[bytes]:
    """The head, the value and what is piggybacked."""
    return ctypes.string_at(message.data_ptr() + _SIZES.size, _sizes(message)[1]).split(b"\n")


def _gather(message: bytearray) -> list[torch.Tensor]:
    """All ranks' messages, in as much as was needed lately; then the rest of those that are longer."""
    slot = sorted(_needed)[-2]
    message += bytes(max(0, slot - len(message)))
    own = torch.frombuffer(message, dtype=torch.uint8)
    rows = [*all_gather(own[:slot]).unbind(0)]
    sizes = [_sizes(row)[0] for row in rows]
    if max(sizes) > slot:
        for place, rest in _gather_long(own[slot:], [max(0, size - slot) for size in sizes]).items():
            rows[place] = torch.cat([rows[place], rest])
    # Heads vary by some bytes (numbers of different lengths).
    _needed.append(min(max(sizes) + 64, _MOST_AT_ONCE))
    return rows


def _gather_long(own: torch.Tensor, sizes: Sequence[int]) -> dict[int, torch.Tensor]:
    """The bytes of the ranks that have any; a single one's travel alone, and take no room for the others'."""
    senders = [rank for rank, size in enumerate(sizes) if size]
    if len(senders) > 1:
        return dict(enumerate(all_gather(pad(own, (0, max(sizes) - len(own)))).unbind(0)))
    return {rank: broadcast(own if rank == world.rank() else own.new_empty(sizes[rank]), rank) for rank in senders}


def _gather_from_devices(tensors: Sequence[torch.Tensor], heads: Sequence[_Head]) -> list[torch.Tensor]:
    """What travels from device to device, whose shapes the heads told without waiting for a device."""
    if all(on_cpu for head in heads for *_, on_cpu in head.specs):
        return [_NOTHING] * len(heads)
    sizes = [sum(_nbytes(*spec) for spec in head.specs if not spec[2]) for head in heads]
    nothing = torch.empty(0, dtype=torch.uint8, device=world.device())
    found = _gather_long(torch.cat([nothing, *map(bytes_of, tensors)]) if tensors else nothing, sizes)
    return [found.get(rank, nothing) for rank in range(len(heads))]


def _tensors(head: _Head, row: torch.Tensor, elsewhere: torch.Tensor) -> list[torch.Tensor]:
    """One rank's tensors, out of the rows in which they came: by way of the CPU, and from its device."""
    if not head.specs:
        return []
    sources, starts = {True: row, False: elsewhere}, {True: _SIZES.size + _sizes(row)[1], False: 0}
    tensors = []
    for name, shape, on_cpu in head.specs:
        end = starts[on_cpu] + _nbytes(name, shape)
        data, starts[on_cpu] = sources[on_cpu][starts[on_cpu] : end], end
        tensors.append(data.clone().view(getattr(torch, name)).view(shape))  # a row may begin anywhere, a number not
    return tensors


def _nbytes(name: str, shape: Sequence[int], *_: Any) -> int:
    size: int = math.prod(shape) * getattr(torch, name).itemsize
    return size


def _compare(heads: Sequence[_Head]) -> None:
    """Raise `Divergence` unless all ranks are in one and the same exchange."""
    if len({(head.kind, head.number, head.location[1]) for head in heads}) == 1:
        return
    locations = [
        f"rank {rank} at {Location(*head.location).line or 'an unknown line'}: {head.kind}"
        for rank, head in enumerate(heads)
    ]
    raise Divergence(f"the ranks have diverged: {'; '.join(locations)}. {waiting.ADVICE}")
