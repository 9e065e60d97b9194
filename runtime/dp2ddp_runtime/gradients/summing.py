"""Sums of tensors over the ranks, many in one all-reduce: at once, or while a backward goes on."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import _utils

from ..base import waiting
from ..ranks import group
from ..ranks.collectives import all_gather, bytes_of, gather_rows, transport_device

_FIRST_BUCKET = 1 << 20  # bytes: small, so that the first all-reduce starts early in backward
_BUCKET = 25 << 20  # bytes, as DistributedDataParallel's default
_HALF = (torch.float16, torch.bfloat16)

Tensors = Sequence[torch.Tensor]


def plan(tensors: Iterable[torch.Tensor], sparse: Iterable[torch.Tensor] = ()) -> list[list[torch.Tensor]]:
    """Tensors, in the order in which backward is likely to reach them, in buckets' sizes, per dtype and device.

    Those whose gradients are `sparse` are by themselves. The buckets are in the order in which they are completed.
    """
    alone = {id(tensor) for tensor in sparse}
    full: list[list[torch.Tensor]] = []
    filling: dict[Any, list[torch.Tensor]] = {}
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        key = id(tensor) if id(tensor) in alone else (tensor.dtype, tensor.device)
        filling.setdefault(key, []).append(tensor)
        sizes[key] = sizes.get(key, 0) + tensor.numel() * tensor.element_size()
        if id(tensor) in alone or sizes[key] >= (_BUCKET if full else _FIRST_BUCKET):
            full.append(filling.pop(key))
            del sizes[key]
    return [*full, *filling.values()]


class Bucket:
    """Tensors whose gradients travel together, and what was set aside of these until all ranks take part.

    Args:
        sparse: whether the gradients are sparse tensors (`nn.Embedding(sparse=True)`).
        root: a node that every backward of all ranks reaches, unless it is one for some tensors only.
        holder: what has these buckets, and is told what comes.
        originals: the tensors, if `Copy` gets them by way of `Root`.
        nodes: where the gradients of these arrive.
    """

    def __init__(
        self,
        sparse: bool = False,
        holder: Any = None,
        root: Any = None,
        originals: Tensors = (),
        nodes: Sequence[Any] = (),
    ) -> None:
        self.sparse = sparse
        self.root = root
        self.originals = originals
        self.nodes = nodes
        # Garbage collection doesn't see what autograd's nodes hold, and they hold this.
        self._holder: Callable[[], Any] = (lambda: None) if holder is None else weakref.ref(holder)
        self.sent = False  # in the backward that is running
        self.aside: list[torch.Tensor | None] = []

    def model(self) -> Tensors:
        """What is in this bucket, and in the others of the same model."""
        holder = self._holder()
        return [] if holder is None else holder.originals

    def set_aside(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Keep gradients of which the other ranks don't know."""
        if all(grad is None for grad in grads):
            return
        if self.sent:
            raise RuntimeError(
                "a parameter got its gradient twice in one backward, the second time inside torch.utils.checkpoint: "
                "pass use_reentrant=False to it"
            )
        self.aside = self._added(grads)
        holder = self._holder()
        if holder is not None:
            holder.has_pieces = True

    def send(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """In a backward of all ranks: these gradients, and what was set aside. Until its end nothing more may be."""
        added, self.aside, self.sent = self._added(grads), [], True
        holder = self._holder()
        if holder is not None:
            holder.has_turn, holder.has_sent = False, True
        torch.autograd.Variable._execution_engine.queue_callback(self._can_send)
        return added

    def _can_send(self) -> None:
        self.sent = False

    def _added(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        return [*map(added, self.aside, grads)] if self.aside else list(grads)


def added(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """The sum of two gradients, of which there may be none."""
    return other if one is None else one if other is None else one + other


class _Flat:
    """Dense tensors of one dtype, one after the other, on their way over the ranks."""

    def __init__(self, tensors: Tensors, like: Tensors) -> None:
        self._like = like
        if {*map(operator.attrgetter("layout"), tensors)} - {torch.strided}:
            raise RuntimeError(
                "a sparse gradient for a parameter that belongs to no nn.Embedding or nn.EmbeddingBag with sparse=True "
                "can't be summed over ranks"
            )
        flat = torch.empty(sum(map(torch.Tensor.numel, like)), dtype=like[0].dtype, device=like[0].device)
        self._parts = list(_utils._unflatten_dense_tensors(flat, like))  # type: ignore[no-untyped-call]
        torch._foreach_copy_(self._parts, list(tensors))
        real = torch.view_as_real(flat) if flat.is_complex() else flat
        route = transport_device(real.device)
        # gloo doesn't add bfloat16 on all versions; on the CPU the wider type costs little and rounds once.
        wide = real.dtype in _HALF and route.type == "cpu"
        self._sent = real.to(route, torch.float32 if wide else real.dtype)
        self.work = group.for_gradients().allreduce([self._sent])
        self._real = real

    def take(self) -> list[torch.Tensor]:
        """The sums, once they are there, in the tensors' shapes and the formats of what they are to be `like`."""
        self.work.wait()
        if self._sent is not self._real:
            self._real.copy_(self._sent)
        pairs = zip(self._parts, self._like)  # in a parameter's memory format, optimizers take their fast ways
        return [part if like.is_contiguous() else torch.empty_like(like).copy_(part) for part, like in pairs]


@torch.no_grad()
def sum_over_ranks(tensors: Tensors, sparse: bool = False) -> list[torch.Tensor]:
    """The sums over ranks of tensors of one dtype, which all ranks have in the same shapes. A collective."""
    if sparse:
        return [_sum_sparse(tensor) for tensor in tensors]
    flat = _Flat(tensors, tensors)
    with waiting.Waiting("a sum over ranks", tensors[0].device):
        return flat.take()


class _Begun(NamedTuple):
    """Gradients that are on their way, and the leaves that they are for."""

    flat: _Flat
    leaves: Tensors
    wanted: Sequence[bool]


_begun: dict[int, list[_Begun]] = {}  # by the number of the backward that they belong to


@torch.no_grad()
def later(grads: Tensors, leaves: Tensors, wanted: Sequence[bool], bucket: Bucket) -> None:
    """Sum gradients over the ranks meanwhile; at this backward's end the `wanted` ones are added to the leaves'
    `.grad`.
    """
    if bucket.sparse:
        accumulate([leaf for leaf, is_wanted in zip(leaves, wanted) if is_wanted], sum_over_ranks(grads, True))
        return
    task = torch._C._current_graph_task_id()
    if task not in _begun:
        _begun[task] = []
        torch.autograd.Variable._execution_engine.queue_callback(lambda: _finish(task))
    _begun[task].append(_Begun(_Flat(grads, leaves), leaves, wanted))


@torch.no_grad()
def _finish(task: int) -> None:
    begun = _begun.pop(task)
    with waiting.Waiting("the gradients of a backward", begun[0].leaves[0].device):
        sums = [flat.take() for flat, *_ in begun]
    for (_, leaves, wanted), grads in zip(begun, sums):
        accumulate([*compress(leaves, wanted)], [*compress(grads, wanted)])


def forget_failed() -> None:
    """Outside of a backward: what one that failed has left behind is waited for, and given up."""
    if _begun and torch._C._current_graph_task_id() == -1:
        for begun in _begun.values():
            for flat, *_ in begun:
                flat.work.wait()
        _begun.clear()


@torch.no_grad()
def accumulate(leaves: Tensors, grads: Tensors) -> None:
    """Add gradients to `.grad`, as autograd does."""
    sums = []
    for leaf, grad in zip(leaves, grads):
        if leaf.grad is None:
            leaf.grad = grad.detach()  # of a buffer, but no view to autograd: `p.grad += p` would be an error
        elif leaf.grad.layout == grad.layout == torch.strided:
            sums.append((leaf.grad, grad))
        else:
            leaf.grad = leaf.grad + grad
    if sums:
        torch._foreach_add_(*zip(*sums))


def _sum_sparse(grad: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' sparse COO gradients (zeros if one has none), coalesced, and never dense. A collective.

    Raises:
        RuntimeError: the gradient is dense (the parameter is also used elsewhere than in its embedding).
    """
    if grad.layout != torch.sparse_coo:
        if grad.any():
            raise RuntimeError(
                f"the weight of a sparse embedding (shape {tuple(grad.shape)}) has a dense gradient, because it is "
                "also used elsewhere: build the embedding with sparse=False"
            )
        grad = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64, device=grad.device), grad[:0], grad.shape)
    own = torch.tensor([grad._nnz()])
    sizes = all_gather(bytes_of(own)).view(torch.int64).flatten().tolist()
    rows = gather_rows(grad._indices(), sizes, 1)
    values = gather_rows(grad._values(), sizes, 0)
    return torch.sparse_coo_tensor(rows, values, grad.shape, check_invariants=False).coalesce()
