"""All-gathering nested values, with autograd, in one collective where the sizes can be foreseen.

Gradients follow one convention. A tensor that every rank has (a whole batch, a gathered output) has the same gradient
on every rank, the one `nn.DataParallel` gives it. A rank's own chunk has N times its share of it, so that averaging
the parameters' gradients over the N ranks makes the sum.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import pickle
import struct
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from . import nesting, world

_ALIGN = 16  # bytes: tensors start where any dtype may
_SIZES = struct.Struct("qq")  # in bytes: the payload's, the head's
_FIRST_SLOT = 16384
_PLAIN = (type(None), bool, int, float, str, bytes)


class Part(NamedTuple):
    """What one rank sends: tensors of any shapes and dtypes, and a small picklable note about them."""

    tensors: list[torch.Tensor]
    note: Any = None


def carrier(device: torch.device) -> torch.device:
    """The device on which tensors of `device` can travel with this process group's backends."""
    config = str(dist.get_backend_config())
    if device.type == "cuda":
        return device if "cuda:nccl" in config else torch.device("cpu")
    return device if "cpu:" in config else world.device()


@functools.lru_cache(maxsize=1)
def group_beside() -> Any:
    """A gloo group for what travels while other collectives run. The first call is a collective."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=world.current().timeout))


class Pending:
    """An exchange that is under way. It may be dropped: all ranks have sent theirs, so none waits for another."""

    def __init__(self, finish: Callable[[], list[Part]]) -> None:
        self._finish = finish

    def wait(self) -> list[Part]:
        """Each rank's part, in rank order, as views of one buffer. To be called once, in the same order on all ranks:
        a payload larger than foreseen takes a second collective."""
        with _normal_mode():
            return self._finish()


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
        with _normal_mode():
            route = carrier(device) if self._group is None else torch.device("cpu")
            head, data, rest = _packed(part)
            sent = [tensor.to(route) for tensor in data]
            if route.type == "cpu":
                gathered = self._start_cpu(head, [*sent, *rest], key)
                return Pending(lambda: [_unpack(payload) for payload in gathered()])
            control = self._start_cpu(head, rest, key)
            return Pending(lambda: _gather_device([_read_control(payload) for payload in control()], sent, route))

    def _start_cpu(self, head: bytes, data: Sequence[torch.Tensor], key: Hashable) -> Callable[[], list[torch.Tensor]]:
        start = _aligned(_SIZES.size + len(head))
        size = start + sum(_aligned(_nbytes(tensor)) for tensor in data)
        slot = self._slots.get(key, _FIRST_SLOT)
        payload = torch.empty(max(size, slot), dtype=torch.uint8)
        _fill(payload, _SIZES.pack(size, len(head)) + head, start, data)
        received, work = _start_rows(payload[:slot], self._group)
        return functools.partial(self._finish_cpu, payload, received, work, key)

    def _finish_cpu(
        self, payload: torch.Tensor, received: list[torch.Tensor], work: Any, key: Hashable
    ) -> list[torch.Tensor]:
        work.wait()
        largest = max(_sizes(row)[0] for row in received)
        if largest > len(received[0]):
            payload = payload if len(payload) >= largest else torch.cat([payload, payload.new_empty(largest)])
            received, work = _start_rows(payload[:largest], self._group)
            work.wait()
        if len(self._slots) > 256:
            self._slots.clear()
        # The heads' sizes vary by some bytes (numbers of different lengths).
        self._slots[key] = _aligned(largest) + 64
        return received


def _normal_mode() -> AbstractContextManager[Any]:
    """Out of inference mode: gloo writes from a thread of its own, which inference tensors don't allow."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


@torch.inference_mode(False)
@torch.no_grad()
def all_gather_rows(row: torch.Tensor) -> list[torch.Tensor]:
    """All-gather equally sized 1-D tensors: each rank's, in rank order."""
    route = carrier(row.device)
    sent = row.to(route)
    if route.type == "cpu":
        rows, work = _start_rows(sent, None)
        work.wait()
        return [gathered.to(row.device) for gathered in rows]
    out = torch.empty((world.world_size(), len(row)), dtype=row.dtype, device=route)
    dist.all_gather_into_tensor(out, sent)
    return list(out.to(row.device).unbind(0))


def _start_rows(row: torch.Tensor, group: Any) -> tuple[list[torch.Tensor], Any]:
    rows = list(torch.empty((world.world_size(), len(row)), dtype=row.dtype).unbind(0))
    return rows, dist.all_gather(rows, row, group=group, async_op=True)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Head(NamedTuple):
    """What is read before the data. Shared between calls, so everything in it is immutable."""

    specs: tuple[tuple[torch.dtype, tuple[int, ...]] | None, ...]  # None: not among the data, but in the rest
    note: Any
    rest: int
    """How many bytes of pickled things follow the data: the note, if it isn't plain, and the tensors without a spec."""


@functools.lru_cache(maxsize=256)
def _parsed(head: bytes) -> _Head:
    return _Head(*pickle.loads(head))


def _packed(part: Part) -> tuple[bytes, list[torch.Tensor], list[torch.Tensor]]:
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


def _fill(payload: torch.Tensor, head: bytes, offset: int, data: Sequence[torch.Tensor]) -> None:
    """Copy the head to the beginning, and the data to `offset`."""
    # By address, as in `_sizes` and `_head_of`: tensor operations take several times as long for what is small.
    address = payload.data_ptr()
    ctypes.memmove(address, head, len(head))
    for tensor in data:
        size = _nbytes(tensor)
        ctypes.memmove(address + offset, tensor.data_ptr(), size)
        offset += _aligned(size)


def _sizes(payload: torch.Tensor) -> tuple[int, int]:
    size, head = _SIZES.unpack(ctypes.string_at(payload.data_ptr(), _SIZES.size))
    return size, head


def _lay_out(payload: torch.Tensor, offset: int, data: Sequence[torch.Tensor]) -> None:
    for tensor in data:
        size = _nbytes(tensor)
        if size:
            payload[offset : offset + size] = bytes_of(tensor)
        offset += _aligned(size)


def _head_of(payload: torch.Tensor) -> tuple[_Head, int]:
    """The head, and where the data begins."""
    _, length = _sizes(payload)
    return _parsed(ctypes.string_at(payload.data_ptr() + _SIZES.size, length)), _aligned(_SIZES.size + length)


def _unpack(payload: torch.Tensor) -> Part:
    head, offset = _head_of(payload)
    tensors, offset = _read(payload, offset, head.specs)
    return _completed(tensors, head, payload, offset)


def _completed(tensors: list[Any], head: _Head, payload: torch.Tensor, offset: int) -> Part:
    """The part whose rest is in the payload at `offset`."""
    if not head.rest:
        return Part(tensors, head.note)
    note, others = pickle.loads(ctypes.string_at(payload.data_ptr() + offset, head.rest))
    missing = iter(others)
    return Part([next(missing) if tensor is None else tensor for tensor in tensors], note)


def _read(payload: torch.Tensor, offset: int, specs: Sequence[Any]) -> tuple[list[Any], int]:
    """The tensors (None where there is no spec), and where the data ends."""
    found: list[torch.Tensor | None] = []
    for spec in specs:
        size = _spec_bytes(spec)
        if size:
            found.append(payload[offset : offset + size].view(spec[0]).view(spec[1]))
        else:
            found.append(spec and torch.empty(spec[1], dtype=spec[0], device=payload.device))
        offset += _aligned(size)
    return found, offset


class _Control(NamedTuple):
    """What travels beside a rank's CUDA tensors."""

    head: _Head
    payload: torch.Tensor
    offset: int


def _read_control(payload: torch.Tensor) -> _Control:
    head, offset = _head_of(payload)
    return _Control(head, payload, offset)


def _gather_device(controls: list[_Control], data: list[torch.Tensor], device: torch.device) -> list[Part]:
    sizes = [sum(_aligned(_spec_bytes(spec)) for spec in control.head.specs) for control in controls]
    payload = torch.empty(max(sizes), dtype=torch.uint8, device=device)
    rows = [payload] * len(controls)
    if max(sizes):
        _lay_out(payload, 0, data)
        rows = all_gather_rows(payload)
    return [
        _completed(_read(row, 0, head.specs)[0], head, told, offset)
        for row, (head, told, offset) in zip(rows, controls)
    ]


def _spec_bytes(spec: Any) -> int:
    if spec is None:
        return 0
    dtype, shape = spec
    size: int = math.prod(shape) * dtype.itemsize
    return size


class _Slot:
    """Marks a tensor's place in a pickled nesting."""


def concatenate(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """The parts as one tensor: along `dim`, scalars as a vector with an entry each, as in `nn.DataParallel`."""
    if all(part.dim() == 0 for part in parts):
        return torch.stack(list(parts))
    return torch.cat(list(parts), dim)


class _Gather(torch.autograd.Function):
    """Local tensors in, gathered ones out. Backward: each rank's own slice of the gradients, times N."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, anchor: torch.Tensor | None, *local: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan
        gathered, plan.gathered = plan.gathered, []  # the graph must not hold on to its own results
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out, wanted in zip(gathered, plan.differentiable) if not wanted))
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        plan: _Plan = ctx.plan
        return (None, None, *(plan.own_slice(index, grads[index]) for index in range(plan.local_count)))


class _Plan:
    """How one gather went: the results, and where this rank's rows are in them."""

    def __init__(self, parts: Sequence[Part], local: Sequence[torch.Tensor], count: int, dim: int) -> None:
        self.dim = dim
        self.local_count = len(local)
        self.ran = world.rank() < count
        self.shapes = [tuple(tensor.shape) for tensor in local]
        columns = list(zip(*(part.tensors for part in parts[:count])))
        self.gathered = [concatenate(column, dim) for column in columns]
        self.differentiable = [any(part.note.requires_grad[i] for part in parts[:count]) for i in range(len(columns))]
        self.offsets = [
            sum(tensor.size(dim) if tensor.dim() else 1 for tensor in column[: world.rank()]) for column in columns
        ]

    def own_slice(self, index: int, grad: torch.Tensor | None) -> torch.Tensor | None:
        if grad is None:
            return None
        shape = self.shapes[index]
        if not self.ran:  # an idle rank ran on borrowed rows: these count for nothing
            return grad.new_zeros(shape)
        if not shape:
            return grad[self.offsets[index]] * world.world_size()
        return grad.narrow(self.dim, self.offsets[index], shape[self.dim]) * world.world_size()


class _Note(NamedTuple):
    """What a rank tells about its outputs."""

    requires_grad: tuple[bool, ...]
    on_cpu: tuple[bool, ...]
    nesting: Any  # rank 0's, where others need it: an idle rank has none, and Python values may differ between ranks


def gather_outputs(
    output: Any, exchange: Exchange, count: int, dim: int, key: Hashable = None, device: torch.device | None = None
) -> Any:
    """Gather the outputs of the ranks' chunks along `dim`, in rank order, differentiably, as `nn.DataParallel` does.

    Args:
        output: this rank's output: tensors in any nesting. On an idle rank (`rank() >= count`) None, or what it ran
            only to take part: that is left out, and gets zero gradients.
        exchange: what carries it; one object for all calls of one module.
        count: how many ranks, from rank 0 on, had a chunk.
        dim: the dimension along which outputs are concatenated. Scalars make a vector with `count` entries.
        key: see `Exchange`.
        device: where the module lives; this rank's device by default.

    Raises:
        RuntimeError: the ranks' outputs don't have the same number of tensors.
    """
    device = world.device() if device is None else device
    local = nesting.tensors(output)
    parts = exchange(_describe(output, local, count), device, key)
    if len({len(part.tensors) for part in parts[:count]}) > 1:
        raise RuntimeError(
            "the model returned different numbers of tensors on different ranks: "
            f"{[len(part.tensors) for part in parts[:count]]}"
        )
    plan = _Plan(parts, local, count, dim)
    main: _Note = parts[0].note
    plan.gathered = [t if on_cpu else t.to(device) for t, on_cpu in zip(plan.gathered, main.on_cpu)]
    results = plan.gathered
    if torch.is_grad_enabled() and any(plan.differentiable):
        anchor = torch.empty(0, requires_grad=True)  # on an idle rank, too, the outputs need a graph
        results = list(_Gather.apply(plan, anchor, *local))
    pending = iter(results)
    if main.nesting is not None:
        return nesting.map_leaves(lambda leaf: next(pending) if isinstance(leaf, _Slot) else leaf, main.nesting)
    return nesting.map_tensors(lambda _: next(pending), output)


def _describe(output: Any, local: list[torch.Tensor], count: int) -> Part:
    flags = tuple([tensor.requires_grad for tensor in local])
    on_cpu = tuple([tensor.device.type == "cpu" for tensor in local])
    idle_ranks = count < world.world_size()
    values = [leaf for leaf in nesting.leaves(output) if leaf is not None and not isinstance(leaf, torch.Tensor)]
    told = nesting.map_tensors(lambda _: _Slot(), output) if world.is_main() and (idle_ranks or values) else None
    return Part(local, _Note(flags, on_cpu, told))


class _TakeChunk(torch.autograd.Function):
    """This rank's rows of a tensor that all ranks have. Backward: all ranks' chunk gradients, gathered."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, gather: _GatherGradient, start: int, length: int) -> torch.Tensor:
        ctx.gather, dim = gather, gather.dim
        return tensor.narrow(dim, start, length)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.gather(grad), None, None, None


class _GatherGradient(NamedTuple):
    """Makes the gradient of a whole tensor from those of its chunks."""

    exchange: Exchange
    shape: torch.Size
    dim: int
    chunks: int

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        rows = self.shape[self.dim]
        whole: torch.Tensor = gather_outputs(grad, self.exchange, self.chunks, self.dim, ("grad", rows), grad.device)
        missing = rows - whole.size(self.dim)  # rows that were left out, because another input had fewer chunks
        if missing:
            shape = list(self.shape)
            shape[self.dim] = missing
            whole = torch.cat([whole, whole.new_zeros(shape)], self.dim)
        return whole / world.world_size()


def take_rows(
    tensor: torch.Tensor, exchange: Exchange, dim: int, index: int, count: int, device: torch.device
) -> torch.Tensor:
    """Chunk `index` of `count` of a tensor that all ranks have, on `device`.

    Differentiable: the tensor's gradient is gathered from all ranks, so every rank must run backward through it.
    """
    size = -(-tensor.size(dim) // world.world_size())
    start = min(index * size, tensor.size(dim))
    length = min(size, tensor.size(dim) - start)
    if torch.is_grad_enabled() and tensor.requires_grad:
        gather = _GatherGradient(exchange, tensor.shape, dim, count)
        rows: torch.Tensor = _TakeChunk.apply(tensor, gather, start, length)
    else:
        rows = tensor.narrow(dim, start, length)
    if device.type == "cuda" and rows.device != device:
        return rows.to(device)
    # A copy: what the module does to its input in place must not make the ranks' batches differ.
    return rows.clone()


@torch.inference_mode(False)
@torch.no_grad()
def broadcast_coalesced(tensors: Sequence[torch.Tensor], source: int = 0) -> None:
    """Overwrite `tensors` with rank `source`'s, one broadcast per dtype and device, without bumping their versions."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in (tensor for tensor in tensors if tensor.numel()):
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.data)
    for (_, device), members in groups.items():
        route = carrier(device)
        if len(members) == 1 and members[0].is_contiguous() and members[0].device == route:
            dist.broadcast(bytes_of(members[0]), src=source)
            continue
        flat = torch.cat([plain(member).reshape(-1) for member in members]).to(route)
        dist.broadcast(bytes_of(flat), src=source)  # bytes: every backend knows these
        if world.rank() != source:
            pieces = torch.split(flat.to(device), [member.numel() for member in members])
            for member, piece in zip(members, pieces):
                member.copy_(piece.view(member.shape))
