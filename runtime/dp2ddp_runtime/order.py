"""The order in which backward reaches the parameters: what rank 0 sees in one backward, told to all ranks.

Gradients that arrive together travel together, and early. The order of the layers' definition is only a guess at it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch

from . import collectives, world

Params = Sequence[torch.nn.Parameter]


class Seen(NamedTuple):
    """What backward did with a parameter. Sorts in the order in which gradients were complete."""

    again: bool  # it got several gradients, as in reentrant checkpoints
    place: int
    first: bool  # it got one before the model's outputs did: the script uses it directly


class BackwardOrder:
    """Observes the first backward after there are new parameters.

    The hooks for that are on the graph's own nodes and go with it: what is on the parameters costs time in every step.

    Args:
        on_reach: called with a parameter before it gets a gradient; tells whether this begins the backward.
    """

    def __init__(self, on_reach: Callable[[torch.nn.Parameter], bool]) -> None:
        self._on_reach = on_reach
        self._seen: dict[torch.nn.Parameter, Seen] = {}
        self.follow((), ())

    def follow(self, params: Params, all_params: Params) -> None:
        """From now on there are these parameters, of which `params` get gradients."""
        kept = set(all_params)
        self._seen = {param: seen for param, seen in self._seen.items() if param in kept}
        self._params = params
        self.known = all(param in self._seen for param in params)
        self._nodes: list[Any] = []
        self._counts: dict[int, int] = {}  # gradients by the parameter's index, in the order of the last ones
        self._first: set[int] = set()

    def sort(self, params: Params) -> Params:
        """The parameters in backward's order."""
        return sorted(params, key=self._seen.__getitem__) if self.known else params[::-1]

    def at_once(self, params: Params) -> bool:
        """Whether their gradients are known to be complete as soon as they are there."""
        return self.known and not any(self._seen[param].again for param in params)

    def first(self) -> list[torch.nn.Parameter]:
        """The parameters that backward may reach before it reaches the model's outputs."""
        return [param for param in self._params if self.known and self._seen[param].first]

    def observe(self) -> None:
        """Watch the graphs that there are, and those that are made until `agree`, unless the order is known."""
        if self.known or self._nodes:
            return
        # A parameter's node stays the same as long as somebody holds it.
        self._nodes = [param.view_as(param).grad_fn.next_functions[0][0] for param in self._params]  # type: ignore
        for index, node in enumerate(self._nodes):
            node.register_prehook(functools.partial(self._before, self._first, index))
            node.register_hook(functools.partial(_after, self._counts, index))

    def _before(self, first: set[int], index: int, grads: Any) -> None:
        if first is self._first and self._on_reach(self._params[index]):
            first.add(index)

    def restart(self) -> None:
        """A backward begins: what was seen before doesn't count."""
        self._counts.clear()

    def agree(self, group: Any) -> None:
        """Take over what rank 0 saw. A collective, at the end of a backward."""
        rows = torch.zeros((len(self._params), len(Seen._fields)), dtype=torch.int64)
        if world.rank() == 0:
            unseen = [index for index in reversed(range(len(rows))) if index not in self._counts]
            for place, index in enumerate([*self._counts, *unseen]):
                rows[index] = torch.tensor([self._counts.get(index, 0) > 1, place, index in self._first])
        rows = rows.to(collectives.carrier(self._params[0].device))
        collectives.start_sum(rows, group).wait()
        self._seen.update({p: Seen(*row) for p, row in zip(self._params, rows.tolist())})
        self.follow(self._params, list(self._seen))


def _after(counts: dict[int, int], index: int, *grads: Any) -> None:
    counts[index] = counts.pop(index, 0) + 1
