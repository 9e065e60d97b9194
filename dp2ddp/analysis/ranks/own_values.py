"""Values that each rank has for itself (the time, its process id, a random name) and that end in a path or a seed.

Where such a value only tells how long something took, is printed, or names what is only written, nothing needs to
agree. But a checkpoint that rank 0 saved under its own time is never found under another rank's, and by a seed of the
clock's the ranks diverge.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.dataflow.reaching import ReachingDefinitions
from dp2ddp.analysis.launch.before import BeforeLaunch
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.ranks.rank_0_uses import RankZeroUses
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument
from dp2ddp.source.program import ParsedProgram

#: All that they are given is part of a path, or of a seed; others take it in one place.
_TAKING_PATHS = frozenset({"asks", "lists", "changes", "paths", "seeds"})
_METHODS = frozenset({"manual_seed", "savefig", "mkdir", "joinpath", "write_text", "to_csv"})
_HOLDING = (ast.Name, ast.Attribute, ast.Subscript)
_KEYWORDS = frozenset("seed random_state filename log_dir logdir save_dir out_dir output_dir run_dir".split())


@dataclass
class OwnValues:
    """Where values of a rank's own come from that end in paths and seeds.

    Attributes:
        shared: calls that make temporary files and folders which have to be one for all ranks.
        values: expressions that have to be rank 0's, in the order of the text. They run after the launch: what is taken
            before it is named where it is used.
        files: calls that make a file or folder on each rank where there should be one.
        of_rank_0: values that may differ, as only rank 0 uses them.
    """

    source: ParsedProgram
    names: Names
    before: BeforeLaunch
    launches: Sequence[Launch]
    reaching: ReachingDefinitions
    catalogue: Catalogue
    uses: RankZeroUses
    shared: Collection[ast.Call]
    values: list[ast.expr] = field(default_factory=list)
    files: list[ast.expr] = field(default_factory=list)
    of_rank_0: list[ast.expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = {c for c in self.source.calls if self.catalogue.does(self.names.qualified(c.func), "own")}
        made = [c for c in self.source.calls if c in own or c in self.shared]
        if not made:
            return
        before = self.before.nodes(*self.launches)
        ends = [end for end in self._ends() if end not in before]
        for node in sorted(self._origins(ends, made, before), key=lambda n: (n.lineno, n.col_offset)):
            if node not in self.shared and self.uses.only(node):
                self.of_rank_0.append(node)
                continue
            is_file = node in self.shared and not self._stays(node)
            (self.files if is_file else self.values).append(self._with_methods(node))

    def _origins(
        self, ends: Collection[ast.expr], made: Collection[ast.expr], before: Collection[ast.AST]
    ) -> set[ast.expr]:
        """What goes into the values of `ends`: of `made` what runs after the launch, or what holds an earlier one."""
        early = {call for call in made if call in before}
        holding: set[ast.expr] = set()
        if early:
            # (A function that ran before may be called again: what it gives then was made by a line that ran before.)
            loads = [n for n in self.source.nodes if isinstance(n, _HOLDING) and isinstance(n.ctx, ast.Load)]
            for node in (*loads, *self.source.calls):
                held = self.reaching.given_back(node) if isinstance(node, ast.Call) else self.reaching.held(node)
                earlier = [] if node in before else [v for v in held if v in before]
                if self.reaching.reached(earlier, early):
                    holding.add(node)
        return self.reaching.reached(ends, holding.union(made).difference(early))

    def _stays(self, node: ast.expr) -> bool:
        made = self.catalogue.of(self.names.qualified(node.func)) if isinstance(node, ast.Call) else None
        return made is not None and "stays" in made.marks

    # -- where values end ----------------------------------------------------------------------------------------------

    def _ends(self) -> Iterator[ast.expr]:
        """The expressions that are paths or seeds."""
        for call in self.source.calls:
            path = self.names.qualified(call.func)
            function = self.catalogue.of(path)
            if function is not None and function.does in _TAKING_PATHS:
                yield from call.args
            elif function is not None and function.file is not None:
                given = argument(call, *function.file)
                yield from [given] if given is not None else []
            elif not path and isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
                yield from (call.func.value, *call.args)
            yield from (k.value for k in call.keywords if k.arg in _KEYWORDS)

    def _with_methods(self, node: ast.expr) -> ast.expr:
        """A call with the methods and attributes of its value: `datetime.now()` with `.strftime(...)`."""
        above = self.source.parent(node)
        while isinstance(node, ast.Call) and isinstance(above, ast.Attribute) and above.value is node:
            outer = self.source.parent(above)
            is_call = isinstance(outer, ast.Call) and outer.func is above
            node = outer if is_call else above  # type: ignore[assignment]
            above = self.source.parent(node)
        return node
