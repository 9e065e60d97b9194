"""Gradients by construction: two pairs of functions, each the other's adjoint, so autograd does all the rest.

    Take   a tensor that all ranks have -> this rank's rows of it     Gather  the ranks' rows -> the whole
    Copy   parameters -> this replica's                               Sum     the replicas' gradients -> their sum

What all ranks have (a parameter, a whole batch, a gathered output) has one and the same gradient on all of them. What a
rank has of its own (its rows, its replica's parameters) has the gradient of these alone. `Copy` and `Sum` are torch's
`Broadcast` and `ReduceAddCoalesced` (https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/_functions.py) with
a sum over ranks for the copies between devices. Nothing hangs on parameters or on the end of a backward.

**Tokens** make all ranks take part. A rank's rows may have taken another branch, or there are none; so what leads from
the ranks' own tensors to the whole (`Gather`, `Sum`) also hangs on an empty tensor, the token, which is an output of
what leads the other way (`Copy`, `Take`). A backward that comes from the whole hands a gradient to the token, and the
collectives behind it run on all ranks, in one order: autograd's, by when each function was called. A backward without a
token's gradient is this rank's own affair (one that a forward runs, or one inside of a reentrant checkpoint): what it
finds is set aside until one comes that all ranks take part in.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from ..base import world
from ..ranks.collectives import gather_rows
from ..ranks.exchange import exchange
from .summing import Bucket, added, later, sum_over_ranks

_SOON = (1 << 64) - 2  # a node's number in autograd's queue: as soon as it can run, like a leaf's
_RUN, _RETURNED = "run", "returned"
_IS_LEAF, *_HOOKS = map(operator.attrgetter, ("is_leaf", "_backward_hooks", "_post_accumulate_grad_hooks"))
_LAST = itertools.count(1)  # such numbers: after all else that can run, in the reverse order


class Layout(NamedTuple):
    """How a whole is spread over the ranks."""

    sizes: tuple[int, ...]  # each rank's number of rows; of scalars, which make a vector, 1 each
    dim: int
    total: int  # of the whole, along `dim`; more than all sizes if some rows are no rank's
    shape: Sequence[int]  # of this rank's rows; of rank 0's, on which a rank without any runs

    def take(self, whole: torch.Tensor, borrow: bool) -> torch.Tensor:
        """This rank's rows; on a rank without any rank 0's if it may `borrow` them, and else zeros."""
        rank = world.rank()
        if not self.sizes[rank]:
            if not borrow:
                return whole.new_zeros(list(self.shape))
            rank = 0
        start = sum(self.sizes[:rank])
        return whole.narrow(self.dim, start, self.sizes[rank]) if len(self.shape) else whole[start]

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The whole, of the ranks' rows; zeros where they are no rank's. A collective."""
        whole = gather_rows(rows if len(self.shape) else rows.reshape(1), self.sizes, self.dim)
        missing = self.total - sum(self.sizes)
        if not missing:
            return whole
        shape = [*whole.shape[: self.dim], missing, *whole.shape[self.dim + 1 :]]
        return torch.cat([whole, whole.new_zeros(shape)], self.dim)


def layout(rows: torch.Tensor, sizes: Sequence[int], dim: int) -> Layout:
    """How the ranks' `rows` make a whole."""
    return Layout(tuple(sizes), dim if rows.dim() else 0, sum(sizes), rows.shape)


def attach(
    rows: torch.Tensor, whole: torch.Tensor, sizes: Sequence[int], dim: int, tokens: Iterable[torch.Tensor]
) -> torch.Tensor:
    """`whole`, which has come already, as what `Gather` makes of this rank's `rows`."""
    attached: torch.Tensor = Gather.apply(rows, layout(rows, sizes, dim), [whole], join(tokens))
    return attached


def join(tokens: Iterable[torch.Tensor]) -> torch.Tensor:
    """One token for several. With none, one that nothing hangs on, so that a rank's own graph may be empty.

    Models take turns, the one copied last first: where this rank's rows don't lead to another one, nothing but its
    token keeps its sums from beginning ahead of theirs.
    """
    found = list({id(each): each for token in tokens for each in getattr(token.grad_fn, "joined", [token])}.values())
    if len(found) < 2 or not torch.is_grad_enabled():
        return found[0] if found else start()
    found.sort(key=_turn, reverse=True)
    joined: torch.Tensor = _Join.apply(found[0], *map(_wait, found[1:], found))
    joined.grad_fn.joined = found  # type: ignore[union-attr]
    return joined


def set_turn(token: torch.Tensor, turn: int) -> None:
    """Tell a token's turn: a number in autograd's queue that is below those of all that hangs on the token.

    From torch 2.2 on: before that, nodes run in the reverse order of their making, and need no turns.
    """
    if hasattr(token.grad_fn, "_set_sequence_nr"):
        token.grad_fn.turn = turn  # type: ignore[union-attr]


def _turn(token: torch.Tensor) -> int:
    return getattr(token.grad_fn, "turn", _SOON)


def _wait(token: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The token, for which another one's turn has to be over."""
    if _turn(other) == _SOON:
        return token
    late: torch.Tensor = _Join.apply(token)
    late.grad_fn._set_sequence_nr(_turn(other))  # type: ignore[union-attr]
    return late


def start() -> torch.Tensor:
    """The token behind which there is nothing. On this rank's device, whose thread then runs all that it hangs on."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.empty(0, dtype=torch.float32, device=world.device(), requires_grad=True)
        token: torch.Tensor = _Start.apply(leaf)
    return token


class _Start(Function):
    """Keeps what arrives, which has a graph with `create_graph=True`, from a `.grad` that would never be freed."""

    @staticmethod
    def forward(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor) -> Any:
        return None


def end_of(token: torch.Tensor) -> Any:
    """The node at which all that hangs on a token from `start` ends."""
    node: Any = token.grad_fn
    return node.next_functions[0][0]


class Source(NamedTuple):
    """What outputs may be made of: parameters, or an input."""

    nodes: Collection[Any]  # where its gradient arrives
    tokens: Sequence[torch.Tensor]


NO, PERHAPS, YES = range(3)


def reached(output: torch.Tensor, sources: Sequence[Source]) -> list[int]:
    """Which of the sources an output is made of. `nn.DataParallel` gives no gradient to others, not even zeros.

    Perhaps of any, where there is a function of the script's own: in its backward it may run another one, as a
    reentrant checkpoint does.
    """
    found, least = [NO] * len(sources), NO
    places = {node: place for place, source in enumerate(sources) for node in source.nodes}
    todo: list[Any] = [output.grad_fn]
    seen: set[Any] = {None}
    while todo and not all(found):
        node = todo.pop()
        if node in places:
            found[places[node]] = YES
        elif node not in seen:
            seen.add(node)
            todo += [behind for behind, _ in node.next_functions]
            least = PERHAPS if isinstance(node, BackwardCFunction) else least
    return [max(each, least) for each in found]


def perhaps(token: torch.Tensor) -> torch.Tensor:
    """A token for what is `PERHAPS` reached: if it was, on any rank, a backward begins there, as in the original.

    On torch 2.1 the token itself, so that what wasn't reached has zeros: a node can't wait there until all others ran.
    """
    late: torch.Tensor = _Perhaps.apply(start(), [token])
    node: Any = late.grad_fn
    if not hasattr(node, "_set_sequence_nr"):
        return token
    node._set_sequence_nr(next(_LAST))
    return late


class _Perhaps(Function):
    @staticmethod
    def forward(token: torch.Tensor, behind: list[torch.Tensor]) -> torch.Tensor:
        return token.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, (ctx.behind,) = inputs

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor) -> Any:
        if any(exchange("a gradient that a function's own backward found", _has_aside(ctx.behind.grad_fn))):
            torch.autograd.backward(ctx.behind, token)
        return None, None


def _has_aside(node: Any) -> bool:
    """Whether what a token goes to has set something aside. That is `Take`, or `Copy` of each bucket, or several."""
    if hasattr(node, "aside"):
        return node.aside is not None
    if hasattr(node, "behind"):
        return _has_aside(node.behind.grad_fn)
    if hasattr(node, "bucket"):
        return bool(node.bucket.aside) or _has_aside(node.next_functions[0][0])
    return any(_has_aside(behind) for behind, _ in node.next_functions)


class _Join(Function):
    @staticmethod
    def forward(*tokens: torch.Tensor) -> torch.Tensor:
        return tokens[0].new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.count = len(inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None) -> Any:
        return (token,) * ctx.count


class Take(Function):
    """A whole -> this rank's rows of it, and a token. Backward: `Gather`.

    Arguments: the whole, its layout, whether a rank without rows borrows rank 0's, a token.
    """

    @staticmethod
    def forward(whole: torch.Tensor, spread: Layout, borrow: bool, token: torch.Tensor) -> Any:
        rows = spread.take(whole, borrow)
        # A copy for the module, which may write into what it gets.
        return rows.clone() if borrow else rows, token.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        whole, ctx.spread, *_ = inputs
        ctx.kind = {"dtype": whole.dtype, "device": whole.device}
        ctx.aside = None
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, rows: torch.Tensor | None, token: torch.Tensor | None) -> Any:
        rows = added(ctx.aside, rows)
        ctx.aside = rows if token is None else None
        if token is None or not any(exchange("a gradient of what the wrapped model was given", rows is not None)):
            return None, None, None, token
        if rows is None:
            rows = torch.zeros(list(ctx.spread.shape), **ctx.kind)
        return Gather.apply(rows, ctx.spread, [], token), None, None, token


class Gather(Function):
    """This rank's rows -> the whole. Backward: `Take`.

    Arguments: the rows, the layout, a list with the whole if it has come already (it is emptied), a token.
    """

    @staticmethod
    def forward(rows: torch.Tensor, spread: Layout, came: list[torch.Tensor], token: torch.Tensor) -> torch.Tensor:
        return came.pop() if came else spread.gather(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.spread, _, token = inputs
        ctx.token = token  # not saved: a checkpoint around would run the model again for it

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        rows, token = Take.apply(grad, ctx.spread, False, ctx.token)
        return rows, None, None, token


class Root(Function):
    """Parameters, once more: one node for all of them, as torch's `Broadcast` is.

    So a backward for one of them runs, as in the original, all that any of them was used for, with the hooks there.
    """

    @staticmethod
    def forward(*tensors: torch.Tensor) -> Any:
        # The same memory, but no views: these would be of no use once the tensors are written into.
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return grads


class Copy(Function):
    """What all ranks have -> this rank's own of it, and a token. Backward: `Sum`.

    Arguments: a bucket, a token, tensors.
    """

    @staticmethod
    def forward(bucket: Bucket, token: torch.Tensor, *tensors: torch.Tensor) -> Any:
        return (token.new_empty(0), *(tensor.detach() for tensor in tensors))  # no views, see `Root`

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bucket, _, *tensors = inputs
        ctx.tensors = ctx.bucket.originals or tensors
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None, *grads: torch.Tensor | None) -> Any:
        bucket, nothing = ctx.bucket, (None,) * len(grads)
        if token is None:
            if are_hooked(bucket.model() or ctx.tensors):
                raise RuntimeError(
                    "a parameter with a hook got a gradient inside of the wrapped model's forward, or of a reentrant "
                    "torch.utils.checkpoint, where no rank has all of it: pass use_reentrant=False to that, or call "
                    "the hook's function on `.grad` behind the backward"
                )
            bucket.set_aside(grads)
            return (None, token, *nothing)
        uses = [_RUN] * len(grads)
        if _use(bucket.root) != _RUN:  # this backward isn't for all that it can reach
            uses = [_use(node) for node in bucket.nodes or [node for node, _ in ctx.next_functions[-len(grads) :]]]
            if not any(uses):
                return (None, token, *nothing)
        grads = tuple(bucket.send(grads))
        # What a rank's rows didn't use has zeros, as with nn.DataParallel's Broadcast.
        full = [torch.zeros_like(tensor) if grad is None else grad for tensor, grad in zip(ctx.tensors, grads)]
        if not torch.is_grad_enabled() and _are_accumulated(ctx.tensors, uses):
            later(full, ctx.tensors, [bool(use) for use in uses], bucket)
            return (None, token, *nothing)
        token, *sums = Sum.apply(bucket, token, *full)
        return (None, token, *sums)


class Sum(Function):
    """Each rank's own -> the sum over ranks, and a token. Backward: `Copy`.

    Arguments: a bucket, a token, tensors.
    """

    @staticmethod
    def forward(bucket: Bucket, token: torch.Tensor, *tensors: torch.Tensor) -> Any:
        return (token.new_empty(0), *sum_over_ranks(tensors, bucket.sparse))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bucket, token, *_ = inputs
        ctx.token = token

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor, *grads: torch.Tensor) -> Any:
        return (None, *Copy.apply(Bucket(), join([ctx.token, token]), *grads))


def _use(node: Any) -> str:
    """What this backward does with the gradient that arrives at a node; empty if nothing."""
    try:
        return _RUN if node is not None and torch._C._will_engine_execute_node(node) else ""
    except RuntimeError:  # a leaf's, by `autograd.grad()`
        return _RETURNED


def _are_accumulated(tensors: Sequence[torch.Tensor], uses: Sequence[str]) -> bool:
    """Whether gradients go to `.grad`, or nowhere, and nobody looks at them before their backward is over."""
    used = [*itertools.compress(tensors, uses)]
    return _RETURNED not in uses and all(map(_IS_LEAF, used)) and not are_hooked(used)


def are_hooked(tensors: Collection[torch.Tensor]) -> bool:
    """Whether somebody looks at the gradient of one of them before a backward is over."""
    return any(any(map(hooks, tensors)) for hooks in _HOOKS)


def take_turn(nodes: Iterable[Any], soon: bool) -> None:
    """Let nodes run in backward as if they had been made now, or as soon as they can (from torch 2.2 on)."""
    for node in nodes:
        if hasattr(node, "_set_sequence_nr"):
            node._set_sequence_nr(_SOON if soon else torch._C._autograd._get_sequence_nr())
