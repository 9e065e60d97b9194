"""What ranks send each other: tensors of any shapes and dtypes as bytes, behind a head that tells about them."""

from __future__ import annotations

import ctypes
import functools
import math
import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_ALIGN = 16  # bytes: tensors start where any dtype may
SIZES = struct.Struct("qq")  # in bytes: the payload's, the head's
_PLAIN = (type(None), bool, int, float, str, bytes)


class Part(NamedTuple):
    """What one rank sends: tensors of any shapes and dtypes, and a small picklable note about them."""

    tensors: list[torch.Tensor]
    note: Any = None


def aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Head(NamedTuple):
    """What is read before the data. Shared between calls, so everything in it is immutable."""

    specs: tuple[tuple[torch.dtype, tuple[int, ...]] | None, ...]  # None: not among the data, but in the rest
    note: Any
    rest: int
    """How many bytes of pickled things follow the data: the note, if it isn't plain, and the tensors without a spec."""


@functools.lru_cache(maxsize=256)
def _parsed(head: bytes) -> Head:
    return Head(*pickle.loads(head))


def packed(part: Part) -> tuple[bytes, list[torch.Tensor], list[torch.Tensor]]:
    """The head; what travels as bytes; and the rest, pickled, in at most one tensor of bytes."""
    data = [plain(tensor) for tensor in part.tensors if _travels(tensor)]
    specs = tuple([(t.dtype, tuple(t.shape)) if _travels(t) else None for t in part.tensors])
    note = part.note if _is_plain(part.note) else None
    if note is part.note and None not in specs:
        return pickle.dumps((specs, note, 0), protocol=4), data, []
    told = (part.note, [tensor for tensor in part.tensors if not _travels(tensor)])
    rest = bytearray(pickle.dumps(told, protocol=4))
    head = pickle.dumps((specs, note, len(rest)), protocol=4)
    return head, data, [torch.frombuffer(rest, dtype=torch.uint8)]


def signature(part: Part) -> Any:
    """What decides on a CPU part's head: equal for two parts only if their heads are. None where the head isn't all."""
    if not _is_plain(part.note) or not all(_travels(tensor) and tensor.device.type == "cpu" for tensor in part.tensors):
        return None
    # By its text: 1, 1.0 and True are equal, but not the same.
    return [(tensor.dtype, tensor.shape) for tensor in part.tensors], repr(part.note)


def _is_plain(note: Any) -> bool:
    return all(map(_is_plain, note)) if isinstance(note, tuple) else type(note) in _PLAIN


def _travels(tensor: torch.Tensor) -> bool:
    """Whether a tensor is sent as bytes; a sparse one is pickled instead."""
    return tensor.layout == torch.strided


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gradient, lazy conjugation and gaps between its elements."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A `plain` tensor's memory."""
    # One row of a column may be contiguous with any stride, which `view` doesn't take.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def fill(payload: torch.Tensor, head: bytes, offset: int, data: Sequence[torch.Tensor]) -> None:
    """Copy the head to the beginning, and the data to `offset`."""
    # By address, as in `sizes` and `_head_of`: tensor operations take several times as long for what is small.
    address = payload.data_ptr()
    ctypes.memmove(address, head, len(head))
    for tensor in data:
        size = nbytes(tensor)
        ctypes.memmove(address + offset, tensor.data_ptr(), size)
        offset += aligned(size)


def sizes(payload: torch.Tensor) -> tuple[int, int]:
    size, head = SIZES.unpack(ctypes.string_at(payload.data_ptr(), SIZES.size))
    return size, head


def lay_out(payload: torch.Tensor, offset: int, data: Sequence[torch.Tensor]) -> None:
    for tensor in data:
        size = nbytes(tensor)
        if size:
            payload[offset : offset + size] = bytes_of(tensor)
        offset += aligned(size)


def memory_of(payload: torch.Tensor) -> memoryview:
    """The bytes of a payload, or any other row of bytes; valid as long as that lives."""
    return memoryview((ctypes.c_char * len(payload)).from_address(payload.data_ptr())).cast("B")


def whole_head(payload: torch.Tensor) -> bytes:
    """The sizes and the head, as they lie there."""
    return ctypes.string_at(payload.data_ptr(), SIZES.size + sizes(payload)[1])


def head_of(payload: torch.Tensor) -> tuple[Head, int]:
    """The head, and where the data begins."""
    _, length = sizes(payload)
    return _parsed(ctypes.string_at(payload.data_ptr() + SIZES.size, length)), aligned(SIZES.size + length)


def unpack(payload: torch.Tensor) -> Part:
    head, offset = head_of(payload)
    tensors, offset = read(payload, offset, head.specs)
    return completed(tensors, head, payload, offset)


def completed(tensors: list[Any], head: Head, payload: torch.Tensor, offset: int) -> Part:
    """The part whose rest is in the payload at `offset`."""
    if not head.rest:
        return Part(tensors, head.note)
    note, others = pickle.loads(ctypes.string_at(payload.data_ptr() + offset, head.rest))
    missing = iter(others)
    return Part([next(missing) if tensor is None else tensor for tensor in tensors], note)


def read(payload: torch.Tensor, offset: int, specs: Sequence[Any]) -> tuple[list[Any], int]:
    """The tensors (None where there is no spec), and where the data ends."""
    found: list[torch.Tensor | None] = []
    for spec in specs:
        size = spec_bytes(spec)
        if size:
            found.append(payload[offset : offset + size].view(spec[0]).view(spec[1]))
        else:
            found.append(spec and torch.empty(spec[1], dtype=spec[0], device=payload.device))
        offset += aligned(size)
    return found, offset


class Control(NamedTuple):
    """What travels beside a rank's CUDA tensors."""

    head: Head
    payload: torch.Tensor
    offset: int


def read_control(payload: torch.Tensor) -> Control:
    head, offset = head_of(payload)
    return Control(head, payload, offset)


def spec_bytes(spec: Any) -> int:
    if spec is None:
        return 0
    dtype, shape = spec
    size: int = math.prod(shape) * dtype.itemsize
    return size
