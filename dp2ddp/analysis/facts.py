"""Everything that the rules ask about a script, computed once."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.analysis.control.callers import Callers, NeedingAll
from dp2ddp.analysis.control.loops import DataLoop, Loops
from dp2ddp.analysis.dataflow.ingredients import Ingredients
from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.existing_ddp.own_ddp import OwnDdp
from dp2ddp.analysis.files.fetching import Fetching, Step
from dp2ddp.analysis.files.listings import Listings
from dp2ddp.analysis.files.opened import Files
from dp2ddp.analysis.files.writers import Writers
from dp2ddp.analysis.launch.launch import Launch, LaunchFinder
from dp2ddp.analysis.ranks.alone import Alone
from dp2ddp.analysis.ranks.display import Display
from dp2ddp.analysis.ranks.own import OwnValues
from dp2ddp.analysis.roles import Resolver, Wrapped
from dp2ddp.analysis.wraps.replicas import Blocker, Replicas
from dp2ddp.analysis.wraps.wraps import Wraps
from dp2ddp.project.uses import Uses
from dp2ddp.source.names import Names
from dp2ddp.source.program import Source, in_order


@dataclass
class Facts:
    """What a script means.

    Attributes:
        source: the script.
        names: what imported names stand for.
        resolver: the roles that names play.
        wraps: the uses of `DataParallel`.
        loops: the loops over loaders and epochs.
        sync_bn: whether BatchNorm is to be synchronised, set by the plan.
        beside_ddp: whether the script can also set up DistributedDataParallel itself, set by the plan.
        wrap_keywords: the keyword arguments that every `ddp.wrap_model` gets, collected from the rules.
        own_ddp_is_off: the test under which each entry's processes start, beside its own DistributedDataParallel.
    """

    source: Source
    names: Names
    resolver: Resolver
    wraps: Wraps
    loops: Loops
    wrap_keywords: dict[str, str] = field(default_factory=dict)
    sync_bn: bool = False
    beside_ddp: bool = False
    own_ddp_is_off: dict[ast.Module, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> Facts:
        """Analyse a script."""
        names = Names(source)
        resolver = Resolver(source, names)
        wraps = Wraps(source, names, resolver)
        return cls(source, names, resolver, wraps, Loops(source, names, resolver))

    @property
    def parallel(self) -> bool:
        """Whether anything in the script runs on several devices."""
        return bool(self.wraps.models or self.wraps.functional or self.wraps.values)

    @cached_property
    def blockers(self) -> list[Blocker]:
        """What keeps the whole script from being converted."""
        found = [Blocker(node, why) for node, why in self.wraps.refused]
        return [*found, *self.replicas.blockers(sync_bn=self.sync_bn)]

    @cached_property
    def replicas(self) -> Replicas:
        """What reaches for DataParallel's replicas."""
        return Replicas(self.source, self.names, self.resolver, self.wraps)

    @cached_property
    def own_ddp(self) -> OwnDdp:
        """The script's own distributed training."""
        return OwnDdp(self.source, self.names, self.resolver)

    @cached_property
    def launch_finder(self) -> LaunchFinder:
        """Finds places where the processes may start."""
        return LaunchFinder(self.source, self.names, self.resolver, self.loops)

    @cached_property
    def launches(self) -> list[Launch]:
        """Where the processes start, in each file that is started."""
        entries = (entry for entry in self.source.entry_trees if self.comes_to_a_wrap(entry))
        return [launch for entry in entries for launch in self.launch_finder.find(entry)]

    def comes_to_a_wrap(self, entry: ast.Module) -> bool:
        """Whether a script can come to a wrap, by the names that it uses. One that can't stays a single process."""
        lines: dict[str, list[int]] = {}
        for node in (*(wrap.call for wrap in self.wraps.models), *self.wraps.functional, *self.wraps.values):
            lines.setdefault(self.source.file(node).name, []).append(node.lineno)
        name = self.source.file(entry).name
        if name in lines:
            return True
        files = {self.source.file(module).name: module for module in self.names.reachable(entry)}
        return bool(Uses(files, lines).wraps(name, files, whole=True))

    @cached_property
    def model_loops(self) -> list[DataLoop]:
        """The loops over loaders that feed a model."""
        return [loop for loop in self.loops.data_loops if self.loops.uses_model(loop)]

    @cached_property
    def loader_sites(self) -> list[ast.Call]:
        """The `DataLoader(...)` calls whose batches feed a model."""
        sites = {site for loop in self.model_loops for site in loop.sites}
        sites |= self._drawn_otherwise()
        return sorted(sites, key=lambda s: (s.lineno, s.col_offset))

    @cached_property
    def foreign_loaders(self) -> list[ast.expr]:
        """What training loops iterate over that no `DataLoader(...)` of this program built."""
        return self.loops.foreign()

    def _drawn_otherwise(self) -> set[ast.Call]:
        parts = (part for node in (*self.loops.irregular, *self.loops.given_away) for part in ast.walk(node))
        return {site for part in parts if isinstance(part, ast.expr) for site in self.loops.sites_in(part)}

    @cached_property
    def own_tests(self) -> list[ast.expr]:
        """Tests that depend on what each rank has for itself: its clock, log level or terminal."""
        tests = [n.test for n in self.source.nodes if isinstance(n, (ast.If, ast.While, ast.IfExp, ast.Assert))]
        shown = {branch.test for branch in self.own_branches}
        return [t for t in tests if t not in shown and self._is_own(t)]

    @cached_property
    def own_branches(self) -> list[ast.If]:
        """Branches that each rank may take for itself: they show something, or make a folder where there is none."""
        branches = [n for n in self.source.nodes if isinstance(n, ast.If)]
        display = Display(self.source, self.names, self.loops, self.writers, self.callers, self._is_own)
        shown = [b for b in branches if self._is_own(b.test) and display.only_shows(b)]
        asking = [b for b in branches if not b.orelse and any(map(self.listings.is_question, _calls(b.test)))]
        return shown + [b for b in asking if all(map(self._makes_folder, b.body))]

    def _makes_folder(self, statement: ast.stmt) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return False
        method = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir"
        return method or self.names.qualified(call.func) in ("os.makedirs", "os.mkdir")

    def is_in_own_test(self, node: ast.AST) -> bool:
        """Whether a node stands in one of `own_tests`, which is rank 0's as a whole."""
        tests = set(self.own_tests)
        return any(above in tests for above in self.source.ancestors(node))

    def _is_own(self, node: ast.expr) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                path = self.names.qualified(part.func) or ""
                method = part.func.attr if isinstance(part.func, ast.Attribute) else ""
                if path.startswith(("time.", "datetime.")) or method in (
                    "isEnabledFor",
                    "getEffectiveLevel",
                    "isatty",
                    "tell",
                ):
                    return True
            if isinstance(part, ast.Name) and (self.source.scope(part), part.id) in self._own_names:
                return True
        return False

    @cached_property
    def _own_names(self) -> set[tuple[ast.AST, str]]:
        """The names that hold times, by scope."""
        found: set[tuple[ast.AST, str]] = set()
        self.__dict__["_own_names"] = found  # looked up while it grows
        assigned = [n for n in self.source.nodes if isinstance(n, (ast.Assign, ast.AugAssign))]
        before = -1
        while len(found) != before:
            before = len(found)
            for node in assigned:
                if self._is_own(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    found |= {(self.source.scope(t), t.id) for t in targets if isinstance(t, ast.Name)}
        return found

    @cached_property
    def own_values(self) -> OwnValues:
        """The values of a rank's own that end in paths and seeds."""
        ingredients = Ingredients(self.provenance)
        return OwnValues(
            self.source, self.names, self.resolver, self.loops, self.launches, ingredients, self.files.shared
        )

    @cached_property
    def callers(self) -> Callers:
        """Who calls which function."""
        return Callers(self.source, self.resolver)

    @cached_property
    def needing_all(self) -> NeedingAll:
        """What takes all ranks."""
        found: set[ast.AST] = {c for c in self.source.calls if self.resolver.holds(c.func, Wrapped)}
        found.update(loop.node for loop in self.model_loops)
        found.update(wrap.call for wrap in self.wraps.models)
        return NeedingAll(self.callers, found | {*self.wraps.functional, *self.wraps.values})

    @cached_property
    def provenance(self) -> Provenance:
        """Where values come from."""
        return Provenance(self.source, self.names, self.resolver)

    @cached_property
    def writers(self) -> Writers:
        """What writes files and reports."""
        return Writers(self.names, self.resolver, self.provenance)

    @cached_property
    def listings(self) -> Listings:
        """What asks for files."""
        return Listings(self.source, self.names, self.provenance)

    @cached_property
    def files(self) -> Files:
        """The names of files."""
        return Files(self.source, self.names, self.provenance, self.writers)

    @cached_property
    def fetching(self) -> Fetching:
        """Downloads and unpacking."""
        is_own = self.files.is_own
        return Fetching(self.loops, self.listings, self.writers, self.callers, self.needing_all, is_own)

    @cached_property
    def alone(self) -> Alone:
        """Where a rank may be alone."""
        branches, steps = self.own_branches, self._in_turn
        return Alone(self.loops, self.listings, self.writers, self.callers, self.needing_all, branches, steps)

    @cached_property
    def _in_turn(self) -> list[Step]:
        return [step for step in self.fetching.steps if not step.needs_all]

    @cached_property
    def steps(self) -> list[Step]:
        """What the first rank of each machine runs before the others, to fetch files."""
        return [s for s in self._in_turn if s.statement not in self.alone.apart and not self.before_launch(s.call)]

    def in_fetch(self, node: ast.AST) -> bool:
        """Whether a line only runs on the first rank of each machine: the others find then that nothing is missing."""
        return node in self._fetching_nodes

    @cached_property
    def _fetching_nodes(self) -> set[ast.AST]:
        guarded = [statement for step in self.steps for statement in step.guarded]
        found = {n for statement in guarded for n in ast.walk(statement)}
        reached = [n for n in self.loops.reached(*guarded) if isinstance(n, ast.Call)]
        functions = {f.definition for c in reached for f in self.resolver.functions_called(c)}
        before = -1
        while len(found) != before:
            before = len(found)
            for function in functions:
                if all(c in found for c in self.callers.of(function)):
                    found.update(ast.walk(function))
        return found

    @cached_property
    def told_listings(self) -> list[tuple[ast.expr, bool]]:
        """What is made of the files that rank 0 lists, and all ranks go over; whether it must be made a list first."""
        told = (c for c in in_order(self.alone.told) if not self.before_launch(c))
        return list(dict.fromkeys(whole for c in told if (whole := self.listings.whole(c)) is not None))

    def is_told(self, node: ast.AST) -> bool:
        """Whether a node stands in what rank 0 tells the others anyway."""
        whole = {node for node, _ in self.told_listings} | set(self.own_tests)
        return any(above in whole for above in self.source.ancestors(node))

    @cached_property
    def per_sample(self) -> set[ast.AST]:
        """What may run for a sample or a part of the ranks alone: datasets, samplers, functions handed to others."""
        return set(self.loops.reached(*self.alone.sampling_classes, *self.alone.handed_on))

    def on_all_ranks(self, node: ast.expr) -> bool:
        """Whether every rank runs a line, and equally often; not once for each of many files."""
        apart = node in self.alone.nodes or node in self.alone.for_each_file
        return not apart and not self.before_launch(node)

    def before_launch(self, node: ast.expr) -> bool:
        """Whether a line runs before the processes start: a module's, until then; one that is imported, altogether; and
        in the function where they start, what stands above."""
        function = self.source.function(node)
        if function is not None:
            starts = [launch.statement for launch in self.launches if launch.statement is not None]
            here = [start for start in starts if self.source.function(start) is function]
            return not starts or any(node.lineno < start.lineno for start in here)
        module = self.source.module(node)
        launch = next((one for one in self.launches if one.entry is module), None)
        return launch is None or launch.statement is None or node.lineno < launch.statement.lineno


def _calls(node: ast.AST) -> list[ast.Call]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]
