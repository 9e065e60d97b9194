"""What a sharding proof finds, and what its frames share while it is sought."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.analysis.loops import DataLoop, Loops
from dp2ddp.analysis.names import Names
from dp2ddp.analysis.origins import Origins
from dp2ddp.analysis.roles import Resolver
from dp2ddp.analysis.source import FunctionNode, Source


@dataclass(frozen=True)
class Reduction:
    """A value that has to be made the whole batch's.

    Attributes:
        node: the expression; for accumulators, the loop after which they are reduced.
        how: `"mean"`, `"sum"`, `"gather"`, `"weighted"` (this rank's share of a mean), or `"after"`.
        over: the loader, as the script writes it.
        names: for `"after"`, the accumulators.
    """

    node: ast.AST
    how: str
    over: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """What isn't proved, and where."""

    reason: str
    node: ast.AST


@dataclass(frozen=True)
class Proof:
    """The outcome: the reductions that make a sharded script report as the original, or why there are none."""

    reductions: tuple[Reduction, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether sharding is proved to train and report the same."""
        return not self.failures


class NoProofError(Exception):
    """The proof fails at `node`."""

    def __init__(self, reason: str, node: ast.AST) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


@dataclass
class Context:
    """What every frame of one proof shares."""

    source: Source
    names: Names
    resolver: Resolver
    loops: Loops
    loops_by_node: dict[ast.For, DataLoop]
    reductions: dict[tuple[ast.AST, str], Reduction] = field(default_factory=dict)
    # What each function called from a sharded loop asked for: it must be the same whoever calls it.
    by_function: dict[FunctionNode, dict[ast.AST, Reduction]] = field(default_factory=dict)
    # Go on behind what isn't proved, and collect it.
    lenient: bool = False
    failures: dict[ast.AST, Failure] = field(default_factory=dict)

    @cached_property
    def origins(self) -> Origins:
        """Where values come from."""
        return Origins(self.source, self.resolver)

    def fail(self, failure: NoProofError) -> None:
        """Keep a failure and go on, or end the proof."""
        if not self.lenient:
            raise failure
        self.failures.setdefault(failure.node, Failure(failure.reason, failure.node))
