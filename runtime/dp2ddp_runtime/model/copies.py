"""The trained tensors of a wrapped module as this rank's replica has them: `adjoint.Copy`'s, a bucket a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ..base.nesting import identical
from ..gradients import summing
from ..gradients.adjoint import Copy, Root, Source, are_hooked, end_of, set_turn, start, take_turn
from ..gradients.summing import Bucket
from ..ranks.exchange import exchange


class Copies:
    """This replica's trained tensors, which have the originals' memory. They last as long as the originals lie there.

    So a backward through several forwards sends each bucket once. The buckets are in the reverse of the model's order.

    Attributes:
        source: what outputs are made of, if of them.
        originals: what they are copies of.
    """

    def __init__(self) -> None:
        self._groups: list[list[int]] = []  # places of the buckets' tensors
        self._tensors: Mapping[str, torch.Tensor] = {}
        self.originals: list[torch.Tensor] = []
        self._kinds: list[Any] = []
        self._told: set[str] = set()  # for which a backward has shown whether gradients come in pieces
        self._overlaps = False  # sums begin while backward goes on
        self.has_sent = False  # there was a backward of all ranks
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
        return Copies()

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
        if self.has_sent and not self._told.issuperset(self._own):
            # What comes in pieces can't be sent before a backward's end.
            self._overlaps = not any(exchange("whether a model's gradients come in pieces", self.has_pieces))
            self._told.update(self._own)
        if not is_known or self._is_outdated:
            self.originals = list(tensors.values())
            kinds = [(each.dtype, each.device) for each in self.originals]
            if not is_known or kinds != self._kinds:
                self._kinds = kinds
                self._plan(tensors, sparse)
            self._copy(list(tensors), sparse)
        self._tensors = tensors
        return self._own

    def _lies_there(self, tensors: Collection[torch.Tensor]) -> bool:
        """Whether the originals, or the copies, have the memory and the shapes that they had when copies were made."""
        return self._places == _places(tensors)

    def outdated_by_forward(self) -> bool:
        """Whether a forward has changed a copy, other than its numbers.

        It may do so by its rows. So ranks tell each other after each: only all together they copy anew.
        """
        own = self._own.values()
        is_marked = any(each._backward_hooks or each.retains_grad or each.__dict__ for each in own)
        return is_marked or not self._lies_there(own)

    def refuse_written(self) -> None:
        """After a forward: RuntimeError if it has written into a copy while gradients are recorded, as torch has it
        for views.
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
            is_told = self._told.issuperset(self._own)
            take_turn(self._turns, self._overlaps and is_told and not are_hooked(self.originals))

    def _plan(self, tensors: Mapping[str, torch.Tensor], sparse: Collection[torch.Tensor]) -> None:
        """Which tensors go into which bucket."""
        self.has_sent = False
        places = {id(tensor): place for place, tensor in enumerate(self.originals)}
        groups = summing.plan(reversed(list(tensors.values())), sparse)
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
        self._own = dict(zip(names, own))
        self._nodes = [each.grad_fn for each in own]
        self._places = _places(own)
        self._computed = [(each, each.grad_fn) for each in self.originals if not each.is_leaf]
        self.source = Source(set(self._nodes), [self._token])

    def has_aside(self) -> bool:
        """Whether a backward of this rank's own has reached a copy."""
        return any(bucket.aside for bucket in self._buckets)

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
