"""Gradients by construction: two pairs of adjoint functions; autograd does the rest.

    Take   a whole that all ranks have -> this rank's rows      Gather  the ranks' rows -> the whole
    Copy   parameters -> this replica's                         Sum     the replicas' gradients -> their sum

What all ranks have (a parameter, a batch, a gathered output) has one gradient, the same on all of them; what a rank has
of its own has the gradient of that alone. `Copy` and `Sum` are torch's `Broadcast` and `ReduceAddCoalesced` over
processes: https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/_functions.py

An **anchor** is an empty output of `Take` and `Copy`, on which `Gather` hangs. So each rank takes part in each
collective of a backward, whatever its rows have used; what they haven't used has zeros, as in DataParallel. The buckets
of a model hang on each other in one row, so all ranks send them in one order.

A backward inside of another one, or of a forward (reentrant checkpoints, a loss of a layer's own), has sums of its own:
by linearity nothing need be set aside. Every rank runs it, so every rank takes part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from operator import attrgetter, is_
from typing import Any, ClassVar, NamedTuple

import torch
from torch import _utils
from torch.autograd import Function

from . import streams
from .world import agree, all_gather, gather_rows, group_of, waiting, world

Tensors = Sequence[torch.Tensor]

#: Bytes of the first bucket (small, so that its sum begins early) and of the others (as `DistributedDataParallel`'s).
BUCKETS = [1 << 20, 25 << 20]
_SOON = (1 << 64) - 2  # a node's number in autograd's queue: as soon as it can run
HALF = (torch.float16, torch.bfloat16)
_OF_TORCH = ("BackwardHookFunctionBackward",)
_HOOKS = (attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks"))


class Layout(NamedTuple):
    """How a whole lies on the ranks: each one's number of rows along `dim`."""

    sizes: tuple[int, ...]
    dim: int

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows; rank 0's on a rank without any."""
        rank = world.rank if self.sizes[world.rank] else next(r for r, size in enumerate([*self.sizes, 1]) if size)
        if rank >= len(self.sizes):
            return whole.narrow(self.dim, 0, 0)
        return whole.narrow(self.dim, sum(self.sizes[:rank]), self.sizes[rank])


class OuterBackward:
    """The latest backward that came by what all ranks have: not one inside of another, or of a forward.

    Attributes:
        task: its number.
        in_forward: whether a replica runs its forward.
    """

    task = -1
    in_forward = False

    @classmethod
    def begin(cls) -> None:
        """What it draws for its rows may differ between ranks: the script goes on from rank 0's random streams."""
        task = torch._C._current_graph_task_id()
        if task != cls.task:
            torch.autograd.Variable._execution_engine.queue_callback(streams.adopting())
        cls.task = task


def is_inside() -> bool:
    """Whether what runs is a backward inside of another one, or of a forward."""
    return torch._C._current_graph_task_id() not in (-1, OuterBackward.task)


class Take(Function):
    """A whole -> this rank's rows, and an anchor. Backward: `Gather`."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, layout: Layout) -> Any:
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        rows = layout.take(whole).clone()  # the module may write into it
        ctx.like, ctx.device = torch.empty_like(rows, device="meta"), whole.device
        return rows, whole.new_empty(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, anchor: torch.Tensor | None) -> Any:
        if grad is None and anchor is None:
            return None, None
        OuterBackward.begin()
        grad = torch.zeros_like(ctx.like, device=ctx.device) if grad is None else grad
        return Gather.apply(grad, ctx.layout, None, *([] if anchor is None else [anchor])), None


class Gather(Function):
    """This rank's rows -> the whole. Backward: `Take`.

    Arguments: the rows, their layout, the whole if it has come already, anchors.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Layout, whole: Any = None, *anchors: torch.Tensor) -> Any:
        ctx.layout, ctx.anchors, ctx.shape = layout, anchors, rows.shape
        return gather_rows(rows, layout.sizes, layout.dim) if whole is None else whole.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        OuterBackward.begin()
        rows, anchor = Take.apply(grad, ctx.layout)
        if not ctx.layout.sizes[world.rank]:  # none of the rows are this rank's; with a graph, as on the others
            rows = rows if rows.shape == ctx.shape else rows.narrow(ctx.layout.dim, 0, 0)
            rows = rows * 0 if torch.is_grad_enabled() else torch.zeros_like(rows)
        if torch.is_grad_enabled():  # what comes of a second derivative comes to the parameters on all ranks, too
            anchor = sum(ctx.anchors, anchor)
        return (rows, None, None, *(anchor for _ in ctx.anchors))


class Bucket(NamedTuple):
    """Tensors whose gradients travel together.

    Attributes:
        sparse: whether the gradients are sparse.
        model: all tensors of the same model, but for those that it only holds.
        held: whether the module only holds these: what no rank has used of them has no gradient, not even zeros.
        end: a node at which each backward through the model ends, unless it is one for some tensors only.
    """

    sparse: bool
    model: Sequence[torch.Tensor]
    held: bool = False
    end: Any = None


ALONE = Bucket(False, ())


_HOOKED = (
    "a parameter with a hook got a gradient inside of the wrapped model's forward, or of a reentrant "
    "torch.utils.checkpoint, and so gets it in pieces: pass use_reentrant=False to that, or call the hook's function "
    "on `.grad` behind the backward"
)


class Copy(Function):
    """What all ranks have -> an anchor, and this rank's own. Backward: `Sum`.

    Arguments: the bucket, the anchor of the one that is to be sent behind it, tensors.
    """

    #: Whether this rank has no rows of the batch that a forward runs on, so that its own backward adds nothing.
    idle: ClassVar[bool] = False

    @staticmethod
    def forward(ctx: Any, bucket: Bucket, behind: Any, *tensors: torch.Tensor) -> Any:
        ctx.bucket, ctx.tensors, ctx.is_last = bucket, tensors, behind is None or behind.is_leaf
        ctx.are_leaves = all(map(attrgetter("is_leaf"), tensors))
        ctx.set_materialize_grads(False)
        like = tensors[0] if behind is None else behind
        # The same memory, but no views, which would be of no use once the tensors are written into.
        return (like.new_empty(0, dtype=torch.float32), *(tensor.detach() for tensor in tensors))

    @staticmethod
    def backward(ctx: Any, anchor: torch.Tensor | None, *grads: torch.Tensor | None) -> Any:
        found = [grad is not None for grad in grads]
        result: list[Any] = [None, None if ctx.is_last else anchor, *(None for _ in grads)]
        is_hooked = ctx.are_leaves and are_hooked(ctx.tensors)
        if anchor is None and not any(found):  # it only comes behind another one
            if is_hooked:  # which would find no `.grad`
                result[2:] = map(torch.zeros_like, ctx.tensors)
            return tuple(result)
        inside = is_inside()
        if inside and (is_hooked or are_hooked(ctx.bucket.model)):
            raise RuntimeError(_HOOKED)
        if inside:  # only what it has found, which is the same on all ranks
            agree("what a backward inside of the wrapped model reaches", found)
        elif ctx.bucket.held:
            found = [bool(used) for used in sums([torch.tensor(found, dtype=torch.float32, device=world.device)])[0]]
        else:  # what this rank hasn't used has zeros, as with `Broadcast`
            found = [True] * len(grads)
        if not any(found):
            return tuple(result)
        tensors, given = [*compress(ctx.tensors, found)], compress(grads, found)
        zeros = Copy.idle and inside
        full = [torch.zeros_like(t) if g is None or zeros else g for t, g in zip(tensors, given)]
        if not torch.is_grad_enabled() and ctx.are_leaves and not is_hooked and _is_for_all(ctx.bucket.end):
            Sums.of_this_backward().begin(full, tensors, ctx.bucket)
            return tuple(result)
        totals = iter(Sum.apply(ctx.bucket, anchor, *full))
        result[2:] = [next(totals) if is_found else None for is_found in found]
        return tuple(result)


class Sum(Function):
    """Each rank's own -> their sum. Backward: `Copy`. Arguments: the bucket, an anchor or None, tensors."""

    @staticmethod
    def forward(ctx: Any, bucket: Bucket, anchor: Any, *tensors: torch.Tensor) -> Any:
        ctx.bucket, ctx.has_anchor = Bucket(bucket.sparse, ()), anchor is not None
        return tuple(sums([each.detach() for each in tensors], bucket.sparse))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if not OuterBackward.in_forward:  # of a second derivative that comes by no output
            OuterBackward.begin()
        anchor, *own = Copy.apply(ctx.bucket, None, *grads)
        return (None, anchor if ctx.has_anchor else None, *own)


def _is_for_all(end: Any) -> bool:
    """Whether a backward adds to each leaf's `.grad`, not to some (`inputs=`), and returns none (`autograd.grad`)."""
    try:
        return end is not None and bool(torch._C._will_engine_execute_node(end))
    except RuntimeError:
        return False


def are_hooked(tensors: Collection[torch.Tensor]) -> bool:
    """Whether somebody looks at the gradient of one of them before a backward is over."""
    return any(any(map(hooks, tensors)) for hooks in _HOOKS)


class Flat:
    """Dense tensors of one type, one after the other, on their way over the ranks.

    Raises:
        RuntimeError: one is sparse.
    """

    def __init__(self, tensors: Tensors, like: Tensors) -> None:
        if any(each.layout != torch.strided for each in tensors):
            raise RuntimeError(
                "a sparse gradient for a parameter that belongs to no nn.Embedding or nn.EmbeddingBag with sparse=True "
                "can't be summed over ranks: use one of these, or sparse=False"
            )
        self._like = like
        flat = torch.empty(sum(map(torch.Tensor.numel, like)), dtype=like[0].dtype, device=like[0].device)
        self._parts = list(_utils._unflatten_dense_tensors(flat, like))  # type: ignore[no-untyped-call]
        torch._foreach_copy_(self._parts, list(tensors))
        self._real = torch.view_as_real(flat) if flat.is_complex() else flat
        # gloo doesn't add bfloat16 in all versions; on the CPU the wider type costs little, and rounds once.
        is_wide = flat.dtype in HALF and flat.device.type == "cpu"
        self._sent = self._real.float() if is_wide else self._real
        assert world.groups is not None
        # On one rank a backward inside of another may send ahead of that one's sums, on another one behind them.
        group = group_of(flat.device) if is_inside() else world.groups["sums"]
        self._work = group.allreduce([self._sent])

    def take(self) -> list[torch.Tensor]:
        """The sums, once they are there, in the shapes and memory formats of what they are `like`."""
        self._work.wait()
        if self._sent is not self._real:
            self._real.copy_(self._sent)
        pairs = zip(self._parts, self._like)  # in a parameter's own format, optimizers take their fast ways
        return [part if like.is_contiguous() else torch.empty_like(like).copy_(part) for part, like in pairs]


@torch.no_grad()
def sums(tensors: Tensors, sparse: bool = False) -> list[torch.Tensor]:
    """The sums over ranks of tensors of one type, which all ranks have in the same shapes. A collective."""
    if sparse:
        return [_sum_sparse(tensor) for tensor in tensors]
    flat = Flat(tensors, tensors)
    with waiting("a sum over ranks"):
        return flat.take()


def _sum_sparse(grad: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' sparse COO gradients (zeros if one has none), coalesced, and never dense. A collective."""
    if grad.layout != torch.sparse_coo:
        if grad.any():
            raise RuntimeError(
                f"the weight of a sparse embedding (shape {tuple(grad.shape)}) has a dense gradient, because it is "
                "also used elsewhere: build the embedding with sparse=False"
            )
        grad = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64, device=grad.device), grad[:0], grad.shape)
    counts = [int(each) for each in all_gather(torch.tensor([grad._nnz()]))]
    if not any(counts):
        return grad
    rows, values = gather_rows(grad._indices(), counts, 1), gather_rows(grad._values(), counts, 0)
    return torch.sparse_coo_tensor(rows, values, grad.shape, check_invariants=False).coalesce()


class Sums:
    """The sums that a backward has begun, while it goes on. At its end they are added to the leaves' `.grad`."""

    running: ClassVar[dict[int, Sums]] = {}  # by the backward's number

    def __init__(self, task: int) -> None:
        self._task = task
        self._begun: list[tuple[Any, Tensors]] = []
        self._models: dict[int, Tensors] = {}
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    @classmethod
    def of_this_backward(cls) -> Sums:
        task = torch._C._current_graph_task_id()
        return cls.running.get(task) or cls.running.setdefault(task, cls(task))

    @torch.no_grad()
    def begin(self, grads: Tensors, leaves: Tensors, bucket: Bucket) -> None:
        """Begin the sum of gradients, which all ranks begin in the same order."""
        self._begun.append((sums(grads, True) if bucket.sparse else Flat(grads, leaves), leaves))
        self._models[id(bucket.model)] = bucket.model

    @torch.no_grad()
    def _finish(self) -> None:
        del Sums.running[self._task]
        with waiting("the gradients of a backward"):
            taken = [(leaves, flat.take() if isinstance(flat, Flat) else flat) for flat, leaves in self._begun]
        for leaves, grads in taken:
            _accumulate(leaves, grads)
        for model in self._models.values():  # what no rank has used, while it has used others, has zeros, too
            for leaf in model:
                if leaf.grad is None:
                    leaf.grad = torch.zeros_like(leaf)

    @classmethod
    def forget_failed(cls) -> None:
        """Outside of a backward: what one that failed has left behind is waited for, and given up."""
        if cls.running and torch._C._current_graph_task_id() == -1:
            for each in cls.running.values():
                for flat, _ in each._begun:
                    if isinstance(flat, Flat):
                        flat.take()
            cls.running.clear()


def _accumulate(leaves: Tensors, grads: Tensors) -> None:
    """Add gradients to `.grad`, as autograd does."""
    pairs = []
    for leaf, grad in zip(leaves, grads):
        if leaf.grad is None:
            leaf.grad = grad.detach()  # of a bucket, but no view to autograd: `p.grad += p` would be an error
        elif leaf.grad.layout == grad.layout == torch.strided:
            pairs.append((leaf.grad, grad))
        else:
            leaf.grad = leaf.grad + grad
    if pairs:
        torch._foreach_add_(*map(list, zip(*pairs)))


class Copies:
    """This replica's own of a model's trained tensors, with the originals' memory. They last as long as these lie so.

    So a backward through several forwards sends each bucket once.

    Attributes:
        own: by the original's id. The same dictionary as long as they are the same.
        anchors: one, of the bucket that is sent first, or none.
        nodes: `Copy`'s.
    """

    def __init__(self) -> None:
        self._originals: list[torch.Tensor] = []
        self.forget()

    def forget(self) -> None:
        """Copy anew at the next forward."""
        self._places: Any = None
        self.own: dict[int, torch.Tensor] = {}
        self.anchors: list[torch.Tensor] = []
        self.nodes: set[Any] = set()

    def of(self, tensors: Tensors, sparse: Collection[int], held: Collection[int]) -> dict[int, torch.Tensor]:
        """The copies of `tensors`, whose ids are in `sparse` if their gradients are; in `held`: see `Bucket`."""
        Sums.forget_failed()
        places = _places(tensors)
        if places is None or places != self._places or not all(map(is_, tensors, self._originals)):
            self.forget()
            self._originals, self._places = list(tensors), places
            own: dict[int, torch.Tensor] = {}
            # The bucket that is complete first is made last: it is sent ahead of those that it hangs on.
            # On this rank's device, whose thread then runs all that hangs on it.
            anchor: Any = torch.empty(0, dtype=torch.float32, device=world.device, requires_grad=True)
            end = anchor.view_as(anchor).grad_fn.next_functions[0][0] if tensors else None
            model = [each for each in tensors if id(each) not in held]
            for some in reversed(buckets(reversed(tensors), sparse, held)):
                bucket = Bucket(id(some[0]) in sparse, model, id(some[0]) in held, end)
                anchor, *made = Copy.apply(bucket, anchor, *some)
                if hasattr(anchor.grad_fn, "_set_sequence_nr"):
                    anchor.grad_fn._set_sequence_nr(_SOON)  # so that its sum begins while the backward goes on
                self.nodes.add(anchor.grad_fn)
                for each, copy in zip(some, made):
                    own[id(each)], copy.__dict__ = copy, each.__dict__  # what is set on one (`weight.org`) is on both
            self.own = {id(each): own[id(each)] for each in tensors}  # in this order
            self.anchors = [] if anchor.is_leaf else [anchor]
        return self.own

    def moved(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Originals and copies of which the forward has exchanged the memory (`weight.data = ...`)."""
        copies = self.own.values()
        if self._places is None or [*map(torch.Tensor.data_ptr, copies)] == self._places[0]:
            return []
        pairs = zip(self._originals, copies)
        return [(each, copy) for each, copy in pairs if each.data_ptr() != copy.data_ptr()]

    def are_hooked(self) -> bool:
        """Whether a forward has put hooks on them, which are to see its own gradients alone."""
        return are_hooked(self.own.values())

    def written(self) -> torch.Tensor | None:
        """An original into whose copy the forward has written while gradients were recorded."""
        for each in self._originals:
            if self.own[id(each)].grad_fn not in self.nodes:
                return each
        return None


def _places(tensors: Tensors) -> list[Any] | None:
    """Where they lie in memory, in which shapes; None if some are computed, anew each time perhaps."""
    if not all(map(attrgetter("is_leaf"), tensors)):
        return None
    return [list(map(ask, tensors)) for ask in (torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.stride)]


def buckets(tensors: Iterable[torch.Tensor], sparse: Collection[int], held: Collection[int]) -> list[Tensors]:
    """Tensors, in the order in which a backward is likely to reach them, in `BUCKETS`' sizes, by type and device.

    Those whose ids are in `sparse` are alone, those in `held` among themselves. Ordered by when they are complete.
    """
    full: list[Tensors] = []
    filling: dict[Any, list[torch.Tensor]] = {}
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        key: Any = id(tensor) if id(tensor) in sparse else (tensor.dtype, tensor.device, id(tensor) in held)
        filling.setdefault(key, []).append(tensor)
        sizes[key] = sizes.get(key, 0) + tensor.numel() * tensor.element_size()
        if id(tensor) in sparse or sizes[key] >= BUCKETS[bool(full)]:
            full.append(filling.pop(key))
            del sizes[key]
    return [*full, *filling.values()]


def reached(output: torch.Tensor, sources: Sequence[Collection[Any]]) -> list[bool]:
    """By which `sources`' nodes a tensor's graph comes. DataParallel gives no gradient to others, not even zeros.

    By any, perhaps, where there is a function of the script's own: its backward may run another one, as a reentrant
    checkpoint does. (Torch's own function for backward hooks of modules doesn't.)
    """
    found, is_perhaps = [False] * len(sources), False
    nodes = {node: place for place, source in enumerate(sources) for node in source}
    todo: list[Any] = [output.grad_fn]
    seen: set[Any] = {None}
    while todo and not all(found):
        node = todo.pop()
        if node in nodes:
            found[nodes[node]] = True
        elif node not in seen:
            seen.add(node)
            todo += [behind for behind, _ in node.next_functions]
            is_scripts = isinstance(node, torch.autograd.function.BackwardCFunction)
            is_perhaps |= is_scripts and type(node).__name__ not in _OF_TORCH
    return [each or is_perhaps for each in found]
