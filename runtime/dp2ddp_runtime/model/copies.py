"""The trained tensors of a wrapped module as this rank's replica has them: `adjoint.Copy`'s, a bucket a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import Function

from ..base.nesting import identical
from ..gradients import summing
from ..gradients.adjoint import Copy, Root, Source, are_hooked, end_of, set_turn, start, take_turn
from ..gradients.summing import Bucket
from ..ranks.exchange import exchange


class Copies:
    """This replica's trained tensors, which have the originals' memory. They last as long as the originals lie there.

    So a backward through several forwards sends each bucket once. The buckets are in the order of the first backward,
    as rank 0 saw it; before that in the reverse of the model's, as in `DistributedDataParallel`.

    Attributes:
        source: what outputs are made of, if of them.
        originals: what they are copies of.
        enabled: whether gradients are sent; if not, they are set aside until they are (`no_sync`).
    """

    def __init__(self) -> None:
        self.enabled = True
        self._order: list[str] = []  # names, in backward's
        self._groups: list[list[int]] = []  # places of the buckets' tensors
        self._tensors: Mapping[str, torch.Tensor] = {}
        self.originals: list[torch.Tensor] = []
        self._kinds: list[Any] = []
        self._seen: list[str] | None = None  # names, as a backward reaches them
        self._versions: list[int] = []  # until that is known
        self._overlaps = False  # sums begin while backward goes on
        self.has_pieces = False  # gradients came in backwards of a rank's own, as in reentrant checkpoints
        self._forget()

    def _forget(self) -> None:
        self._token: torch.Tensor = start()
        self._is_outdated = False
        self._own: dict[str, torch.Tensor] = {}
        self._nodes: list[Any] = []  # which made them
        self.has_turn = False  # since the latest backward
        self._turns: list[Any] = []  # `Root`'s, and `Copy`'s of each bucket
        self.source = Source((), ())
        self._places: list[Any] = []  # in memory
        self._computed: list[tuple[torch.Tensor, Any]] = []  # those of the originals that aren't leaves
        self._buckets: list[Bucket] = []

    def __deepcopy__(self, memo: Any) -> Copies:
        new = Copies()
        new._order = list(self._order)
        return new

    def of(self, tensors: Mapping[str, torch.Tensor], sparse: Collection[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The copies of all that require a gradient, by the same names; the same dictionary as long as these last.

        May be a collective.
        """
        if torch._C._current_graph_task_id() == -1:
            for bucket in self._buckets:
                bucket.sent = False  # or a backward has failed
        is_known = tensors is self._tensors or (
            identical(list(tensors.values()), self.originals) and list(tensors) == list(self._own)
        )
        self._is_outdated |= not self._lies_there(self.originals) or any(
            each.grad_fn is not node for each, node in self._computed
        )
        has_stepped = self._seen is not None and self._versions != [each._version for each in self.originals]
        if not is_known or has_stepped or self._is_outdated:
            waiting = [(bucket.aside, bucket.originals) for bucket in self._buckets if bucket.aside]
            self.forget_aside()
            learned = self._seen is not None and self._learn(tensors)
            self.originals = list(tensors.values())
            self._versions = [each._version for each in self.originals]
            kinds = [(each.dtype, each.device) for each in self.originals]
            if learned or not is_known or kinds != self._kinds:
                self._kinds = kinds
                self._plan(tensors, sparse)
            self._copy(list(tensors), sparse)
            for aside, originals in waiting:
                self._keep(aside, originals)
        self._tensors = tensors
        return self._own

    def _lies_there(self, tensors: Collection[torch.Tensor]) -> bool:
        """Whether the originals, or the copies, have the memory and the shapes that they had when copies were made."""
        return self._places == _places(tensors)

    def outdated_by_forward(self) -> bool:
        """Whether a forward has changed a copy, other than its numbers; or these, before the order is known.

        It may do so by its rows. So ranks tell each other after each: only all together they copy anew.
        """
        own = self._own.values()
        return (
            not self._lies_there(own)
            or any(each._backward_hooks or each.retains_grad or each.__dict__ for each in own)
            or (self._seen is not None and self._versions != [each._version for each in self.originals])
        )

    def refuse_written(self) -> None:
        """After a forward.

        Raises:
            RuntimeError: it has written into a copy while gradients are recorded. `nn.DataParallel`'s replicas have
                views, into which torch doesn't let it.
        """
        if not identical([each.grad_fn for each in self._own.values()], self._nodes):
            places = [node is each.grad_fn for each, node in zip(self._own.values(), self._nodes)]
            name = list(self._own)[places.index(False)]
            self.outdate()
            raise RuntimeError(
                f"the wrapped model's forward writes into its parameter {name!r} while gradients are recorded, which "
                "nn.DataParallel doesn't allow: write `with torch.no_grad():` around it, or assign a new tensor"
            )

    def outdate(self) -> None:
        """Copy anew at the next forward."""
        self._is_outdated = True

    def take_turn(self) -> None:
        """Ahead of a forward: backward comes to the copies behind all of it, as to those of `Broadcast`.

        Or to each bucket as soon as it is complete, where nobody sees that. Of several forwards before a backward the
        first one counts: what a checkpoint in it finds by a backward of its own must have come, too.
        """
        if not self.has_turn:
            self.has_turn = True
            is_seen = self._seen is not None or are_hooked(self.originals)
            take_turn(self._turns, self._overlaps and not is_seen)

    def _plan(self, tensors: Mapping[str, torch.Tensor], sparse: Collection[torch.Tensor]) -> None:
        """Which tensors go into which bucket, in the order of backward as far as it is known."""
        known = [name for name in self._order if name in tensors]
        order = list(dict.fromkeys([*known, *reversed(list(tensors))]))
        self._seen = [] if len(known) < len(order) else None
        places = {id(tensor): place for place, tensor in enumerate(self.originals)}
        groups = summing.plan([tensors[name] for name in order], sparse)
        self._groups = [[places[id(tensor)] for tensor in group] for group in groups]

    def _copy(self, names: list[str], sparse: Collection[torch.Tensor]) -> None:
        turn = torch._C._autograd._get_sequence_nr()
        self._forget()
        alone = {id(tensor) for tensor in sparse}
        root = end_of(self._token)
        own = list(self.originals)
        rooted: Sequence[torch.Tensor] = Root.apply(*self.originals) if own else ()
        node: Any = rooted[0].grad_fn if own else None
        nodes = [behind for behind, _ in node.next_functions] if own else []
        self._turns = [node]
        # The bucket that backward completes first depends on the one behind it, so all ranks send them in this order.
        for places in reversed(self._groups):
            originals, arrivals = zip(*((self.originals[place], nodes[place]) for place in places))
            bucket = Bucket(id(originals[0]) in alone, self, root, originals, arrivals)
            self._token, *copied = Copy.apply(bucket, self._token, *(rooted[place] for place in places))
            self._turns.append(self._token.grad_fn)
            self._buckets.insert(0, bucket)
            for place, copy in zip(places, copied):
                own[place] = copy
        set_turn(self._token, turn)
        if self._seen is not None:
            own = [_observed(name, copy, self._seen) for name, copy in zip(names, own)]
        self._own = dict(zip(names, own))
        self._nodes = [each.grad_fn for each in own]
        self._places = _places(own)
        self._computed = [(each, each.grad_fn) for each in self.originals if not each.is_leaf]
        self.source = Source(set(self._nodes), [self._token])

    def _learn(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Take over the order in which rank 0's backward came to the tensors, if it came to any. A collective.

        What comes in pieces can't be sent before a backward's end.
        """
        told = exchange("the order of a model's gradients", [self._seen, self.has_pieces])
        seen, self._overlaps = told[0][0], not any(has_pieces for _, has_pieces in told)
        self._order = list(dict.fromkeys([*seen, *self._order, *(reversed(list(tensors)) if seen else ())]))
        return bool(seen)

    def _keep(self, aside: list[torch.Tensor | None], originals: Sequence[torch.Tensor]) -> None:
        """Hand what was set aside for tensors that were copied anew to their buckets."""
        grads = {id(tensor): grad for tensor, grad in zip(originals, aside)}
        for bucket in self._buckets:
            bucket.set_aside([grads.get(id(tensor)) for tensor in bucket.originals])

    def has_aside(self) -> bool:
        """Whether a backward of this rank's own has reached a copy."""
        return self.enabled and any(bucket.aside for bucket in self._buckets)

    def forget_aside(self) -> None:
        """As a rank without rows does, which ran on rank 0's."""
        for bucket in self._buckets:
            bucket.aside = []

    @torch.no_grad()
    def add_up_aside(self) -> None:
        """Add what a backward inside of the forward gave each rank, as replicas add theirs. A collective."""
        for bucket in self._buckets:
            grads, bucket.aside = bucket.aside or [None] * len(bucket.originals), []
            full = [torch.zeros_like(each) if grad is None else grad for each, grad in zip(bucket.originals, grads)]
            summing.accumulate(bucket.originals, summing.sum_over_ranks(full, bucket.sparse))


def _places(tensors: Collection[torch.Tensor]) -> list[Any]:
    """Where tensors lie in memory, and in which shapes. (With `map` in half the time: there may be many.)"""
    return [list(map(ask, tensors)) for ask in (torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.stride)]


def _observed(name: str, tensor: torch.Tensor, seen: list[str]) -> torch.Tensor:
    observed: torch.Tensor = _Observe.apply(tensor, name, seen)
    take_turn([observed.grad_fn], soon=True)
    return observed


class _Observe(Function):
    """Notes when backward has come to a tensor."""

    @staticmethod
    def forward(tensor: torch.Tensor, name: str, seen: list[str]) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.name, ctx.seen = inputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.seen.append(ctx.name)
        return grad, None, None
