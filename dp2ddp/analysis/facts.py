"""Everything that the rules ask about a script, computed once."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.analysis.launch import Launch, LaunchFinder
from dp2ddp.analysis.loops import DataLoop, Loops
from dp2ddp.analysis.names import Names
from dp2ddp.analysis.own import OwnValues
from dp2ddp.analysis.own_ddp import OwnDdp
from dp2ddp.analysis.proof import Proof, prove
from dp2ddp.analysis.replicas import Blocker, Replicas
from dp2ddp.analysis.roles import Function, Resolver
from dp2ddp.analysis.source import FUNCTIONS, Source
from dp2ddp.analysis.wraps import Wraps


@dataclass
class Facts:
    """What a script means.

    Attributes:
        source: the script.
        names: what imported names stand for.
        resolver: the roles that names play.
        wraps: the uses of `DataParallel`.
        loops: the loops over loaders and epochs.
        strategy: `"sharded"` or `"gathered"`, set by the plan before any rule runs.
        lenient: whether the proof goes on behind what it can't show, to find all of it.
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
    strategy: str = "gathered"
    wrap_keywords: dict[str, str] = field(default_factory=dict)
    lenient: bool = False
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
    def whole_batches(self) -> tuple[ast.AST, str] | None:
        """What makes the script need whole batches, whatever its loops are like: the place, and why."""
        if self.wraps.functional:
            return self.wraps.functional[0], "`data_parallel(...)` gathers its outputs"
        if self.wraps.values:
            return self.wraps.values[0], "`DataParallel` is handed on, derived from or called with `*`"
        parts = ((wrap.call, wrap.part.why) for wrap in self.wraps.models if wrap.part is not None)
        return next(parts, None)

    @cached_property
    def detour(self) -> tuple[ast.AST, str] | None:
        """A path on which a model isn't wrapped, so that ranks with shards would train apart: the place, and why."""
        for wrap in self.wraps.models:
            if wrap.detour is not None:
                test = self.source.brief(wrap.detour.branch.test, 40)
                return wrap.call, f"the model is not wrapped where `{test}` is {str(wrap.detour.when).lower()}"
        return None

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
        return [self.launch_finder.find(entry) for entry in self.source.entry_trees]

    @cached_property
    def model_loops(self) -> list[DataLoop]:
        """The loops over loaders that feed a model."""
        return [loop for loop in self.loops.data_loops if self.loops.uses_model(loop)]

    @cached_property
    def sharded_sites(self) -> list[ast.Call]:
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
    def proof(self) -> Proof:
        """Whether the loops may work on shards, and what has to be reduced then."""
        return prove(self.source, self.names, self.resolver, self.loops, self.sharded_sites, lenient=self.lenient)

    @cached_property
    def own_tests(self) -> list[ast.expr]:
        """Tests that depend on what each rank has for itself: its clock, log level or terminal."""
        tests = [n.test for n in self.source.nodes if isinstance(n, (ast.If, ast.While, ast.IfExp, ast.Assert))]
        return [t for t in tests if self._is_own(t)]

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
        return OwnValues(self.source, self.names, self.resolver, self.loops, self.launches)

    @cached_property
    def per_sample(self) -> set[ast.AST]:
        """What may run for a sample or a part of the ranks alone: datasets, samplers, functions handed to others."""
        return set(self.loops.reached(*self._sampling_classes, *self._handed_on))

    @cached_property
    def called_per_sample(self) -> set[ast.AST]:
        """As `per_sample`, but for classes without bases, of which most are no datasets: there only what is called."""
        classes = [node for node in self._sampling_classes if node.bases]
        methods = [m for node in self._sampling_classes for m in node.body if _is_sampling(m)]
        return set(self.loops.reached(*classes, *methods, *self._handed_on))

    @cached_property
    def _sampling_classes(self) -> list[ast.ClassDef]:
        """What is called is a transform, or a dataset's way to read a file; a model has a forward."""
        return [n for n in self.source.nodes if isinstance(n, ast.ClassDef) and any(map(_is_sampling, n.body))]

    @cached_property
    def _handed_on(self) -> list[ast.AST]:
        """Functions that others may call: lambdas, and those that are named without being called."""
        found: list[ast.AST] = []
        called = {c.func for c in self.source.calls}
        for node in self.source.nodes:
            if isinstance(node, ast.Lambda):
                found.append(node)
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and node not in called:
                found += [r.definition for r in self.resolver.roles(node) if isinstance(r, Function)]
        return found

    def on_all_ranks(self, node: ast.expr) -> bool:
        """Whether every rank runs a line, and equally often."""
        return not self.before_launch(node) and node not in self.per_sample

    def in_handler(self, node: ast.AST) -> bool:
        """Whether a node stands in an `except`, where the ranks may not be together."""
        return any(isinstance(above, ast.ExceptHandler) for above in self.source.ancestors(node))

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

    @cached_property
    def gathers_in_training(self) -> list[ast.expr]:
        """The tensors that a sharded training loop would have to gather in every step."""
        training = {loop.node for loop in self.model_loops if self.loops.trains(loop)}
        gathered = [r.node for r in self.proof.reductions if r.how == "gather" and isinstance(r.node, ast.expr)]
        return [n for n in gathered if any(above in training for above in self.source.ancestors(n))]


def _is_sampling(node: ast.AST) -> bool:
    """Whether this is a method by which others take samples, or hand them through."""
    return isinstance(node, FUNCTIONS) and node.name in ("__getitem__", "__iter__", "__len__", "__call__")
