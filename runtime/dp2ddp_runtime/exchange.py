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
from torch.nn.functional import pad

from . import codec, signals, waiting, world
from .collectives import all_gather, bytes_of, carrier, plain
from .location import Location, here
from .uncompiled import uncompiled

_SIZES = struct.Struct("qq")  # bytes of the message, of its head
_FIRST_SLOT = 4096
_MOST_AT_ONCE = 1 << 22  # bytes: what is larger (a list of a million files) must not make the next ones as large


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

# The bytes that the latest messages needed. As many as the second largest of them are sent before anything is known:
# what comes time and again fits, and a single large one makes no others as large.
_needed = collections.deque([_FIRST_SLOT] * 2, maxlen=8)
_count = 0
_lock = threading.RLock()  # a thread that reads ahead may take part, as long as it is in the same order on all ranks


@uncompiled
def exchange(kind: str, value: Any = None) -> list[Any]:
    """Tell all ranks this rank's value, and be told theirs. A collective.

    Args:
        kind: what is exchanged, in words for an error message; the same on all ranks.
        value: a plain value (`codec.pack`). Tensors in it may be strided ones of any shapes and dtypes, on the CPU or
            this rank's device.

    Returns:
        Each rank's value, in rank order. Tensors lie where they travelled: on `carrier(device)`.

    Raises:
        Divergence: the ranks are in different exchanges; says in which, and on which lines.
    """
    told = _exchange(kind, value)
    signals.look(_count)
    return told


@torch.inference_mode(False)
@torch.no_grad()
def _exchange(kind: str, value: Any) -> list[Any]:
    global _count
    with _lock:
        _count += 1
        boarded, location = dict(passengers), here()
        tensors: list[torch.Tensor] = []
        packed = codec.pack([value, {repr(key): each.tensor for key, each in boarded.items()}], tensors)
        sent = [plain(tensor).to(carrier(tensor.device)) for tensor in tensors]
        specs = [(str(each.dtype)[len("torch.") :], list(each.shape), each.device.type == "cpu") for each in sent]
        head = {"kind": kind, "count": _count, "location": location, "specs": specs, "value": packed}
        with waiting.Waiting(f"{kind} (exchange {_count})"):
            rows = _gather(_message(head, [each for each in sent if each.device.type == "cpu"]))
        heads = [json.loads(ctypes.string_at(row.data_ptr() + _SIZES.size, _sizes(row)[1])) for row in rows]
        _compare(heads)
        others = _gather_from_devices([each for each in sent if each.device.type != "cpu"], heads)
        told = [codec.unpack(each["value"], _tensors(each, *came)) for each, *came in zip(heads, rows, others)]
        for key, passenger in boarded.items():
            if all(repr(key) in theirs for _, theirs in told):
                del passengers[key]
                passenger.arrive([theirs[repr(key)] for _, theirs in told])
    return [theirs for theirs, _ in told]


def _message(head: dict[str, Any], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sizes, the head as text, and the tensors' bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    start = torch.frombuffer(bytearray(_SIZES.size) + text, dtype=torch.uint8)
    message = torch.cat([start, *map(bytes_of, tensors)])
    ctypes.memmove(message.data_ptr(), _SIZES.pack(len(message), len(text)), _SIZES.size)
    return message


def _sizes(message: torch.Tensor) -> tuple[int, int]:
    size, head = _SIZES.unpack(ctypes.string_at(message.data_ptr(), _SIZES.size))
    return size, head


def _fit(row: torch.Tensor, size: int) -> torch.Tensor:
    """As many bytes of a row; zeros behind it if it has less."""
    return pad(row, (0, size - len(row)))


def _gather(message: torch.Tensor) -> torch.Tensor:
    """All-gather the messages, in as much as was needed lately; then the rest, if this is more."""
    slot = sorted(_needed)[-2]
    rows = all_gather(_fit(message, slot))
    largest = max(_sizes(row)[0] for row in rows)
    if largest > slot:
        rows = torch.cat([rows, all_gather(_fit(message[slot:], largest - slot))], 1)
    # Heads vary by some bytes (numbers of different lengths).
    _needed.append(min(largest + 64, _MOST_AT_ONCE))
    return rows


def _gather_from_devices(tensors: Sequence[torch.Tensor], heads: Sequence[Any]) -> torch.Tensor:
    """All-gather what travels from device to device, whose shapes the heads told without waiting for a device."""
    largest = max(sum(_nbytes(spec) for spec in head["specs"] if not spec[2]) for head in heads)
    nothing = torch.empty(0, dtype=torch.uint8, device=world.device())
    if not largest:
        return nothing.expand(len(heads), 0)
    return all_gather(_fit(torch.cat([nothing, *map(bytes_of, tensors)]), largest))


def _tensors(head: Any, row: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
    """One rank's tensors, out of the rows in which they came: by way of the CPU, and from its device."""
    rest = {True: row[_SIZES.size + _sizes(row)[1] :], False: other}
    tensors = []
    for spec in head["specs"]:
        name, shape, on_cpu = spec
        data, rest[on_cpu] = rest[on_cpu][: _nbytes(spec)], rest[on_cpu][_nbytes(spec) :]
        tensors.append(data.clone().view(getattr(torch, name)).view(shape))  # a row may begin anywhere, a number not
    return tensors


def _nbytes(spec: Any) -> int:
    size: int = math.prod(spec[1]) * getattr(torch, spec[0]).itemsize
    return size


def _compare(heads: Sequence[Any]) -> None:
    """Raise `Divergence` unless all ranks are in one and the same exchange."""
    if len({(head["kind"], head["count"], head["location"][1]) for head in heads}) == 1:
        return
    locations = [
        f"rank {rank} at {Location(*head['location']).line or 'an unknown line'}: {head['kind']}"
        for rank, head in enumerate(heads)
    ]
    raise Divergence(f"the ranks have diverged: {'; '.join(locations)}. {waiting.ADVICE}")
