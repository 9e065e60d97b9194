"""Everything that the rules ask about a script, computed once."""

from __future__ import annotations

import ast
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import or_

from dp2ddp.analysis.beside_ddp import placed
from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.changes import Changes, binding
from dp2ddp.analysis.control.callers import Callers, ComingTo
from dp2ddp.analysis.control.loops import DataLoop, Loops
from dp2ddp.analysis.control.reached import Running
from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.dataflow.reaching import ReachingDefinitions
from dp2ddp.analysis.device_names import index_of
from dp2ddp.analysis.existing_ddp.own_ddp import OwnDdp
from dp2ddp.analysis.files.fetching import Fetching, Step
from dp2ddp.analysis.files.folders import Folders
from dp2ddp.analysis.files.listings import Listings
from dp2ddp.analysis.files.opened import Files
from dp2ddp.analysis.files.writers import Writers
from dp2ddp.analysis.given_devices import Given, given_devices, unknown
from dp2ddp.analysis.launch.before import BeforeLaunch
from dp2ddp.analysis.launch.placement import Launch, LaunchFinder
from dp2ddp.analysis.on_gpus import needs_one_gpu, runs_on_gpus
from dp2ddp.analysis.ranks.display import Display
from dp2ddp.analysis.ranks.divergent import RankDivergent
from dp2ddp.analysis.ranks.own_decisions import Clocks, OwnTests
from dp2ddp.analysis.ranks.own_values import OwnValues
from dp2ddp.analysis.ranks.rank_0_uses import RankZeroUses
from dp2ddp.analysis.ranks.threads import Threads
from dp2ddp.analysis.roles import Resolver, Wrapped
from dp2ddp.analysis.wraps.replicas import Blocker, Replicas
from dp2ddp.analysis.wraps.wraps import Wraps
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import keyword, last_name
from dp2ddp.source.program import FunctionNode, ParsedProgram


@dataclass(frozen=True)
class Facts:
    """What a script means. Each fact is computed when it is asked for, once; what is done about it stands in the plan.

    Attributes:
        source: the script.
        names: what imported names stand for.
        resolver: the roles that names play.
        wraps: the uses of `DataParallel`.
        loops: the loops over loaders and epochs.
        running: what the scripts can run.
        sync_bn: whether BatchNorm is to be synchronised, which some of what reaches for replicas is fine with.
        allow_ddp: whether a script may also set up DistributedDataParallel itself.
        catalogue: what functions of libraries do.
    """

    source: ParsedProgram
    names: Names
    resolver: Resolver
    wraps: Wraps
    loops: Loops
    running: Running
    sync_bn: bool = False
    allow_ddp: bool = False
    catalogue: Catalogue = field(default_factory=Catalogue)

    @classmethod
    def of(
        cls, source: ParsedProgram, *, sync_bn: bool = False, allow_ddp: bool = False, functions: Collection[str] = ()
    ) -> Facts:
        """Analyse a script; `functions` are what the user adds to the catalogue."""
        names = Names(source)
        resolver = Resolver(source, names)
        running = Running(source, names)
        wraps = Wraps(source, names, resolver, running)
        loops = Loops(source, names, resolver)
        return cls(source, names, resolver, wraps, loops, running, sync_bn, allow_ddp, Catalogue(functions))

    @property
    def parallel(self) -> bool:
        """Whether anything in the script runs on several devices."""
        return not self.wraps.on_one_device and bool(self.wraps.models or self.wraps.functional or self.wraps.values)

    @cached_property
    def blockers(self) -> list[Blocker]:
        """What keeps the whole script from being converted."""
        return list(self.replicas.blockers(sync_bn=self.sync_bn))

    @cached_property
    def replicas(self) -> Replicas:
        """What reaches for DataParallel's replicas."""
        return Replicas(self.source, self.names, self.resolver, self.wraps, self.running, partial(needs_one_gpu, self))

    @cached_property
    def own_ddp(self) -> OwnDdp:
        """The script's own distributed training."""
        return OwnDdp(self.source, self.names, self.resolver, self.running)

    @cached_property
    def beside_ddp(self) -> bool:
        """Whether the script can also set up DistributedDataParallel itself."""
        return self.allow_ddp and self.own_ddp.present

    @cached_property
    def launch_finder(self) -> LaunchFinder:
        """Finds places where the processes may start."""
        return LaunchFinder(self.source, self.names, self.resolver, self.loops, self.callers)

    @cached_property
    def launches(self) -> list[Launch]:
        """Where the processes start, in each file that is started.

        Raises:
            BadInput: beside the script's own distributed training, and where that is off can't be told there.
        """
        asked = partial(unknown, self)
        found = [launch for entry in self.parallel_entries for launch in self.launch_finder.find(entry, asked)]
        is_beside = self.parallel and self.beside_ddp
        return [placed(self, launch) if is_beside else self._above_constants(launch) for launch in found]

    def _above_constants(self, launch: Launch) -> Launch:
        """The place above a paragraph of constants, unless the processes have to be told one of them."""
        above = self.launch_finder.above_constants(launch)
        is_same = above is launch or given_devices(self, above) == given_devices(self, launch)
        return above if is_same else launch

    @cached_property
    def picked_devices(self) -> frozenset[str]:
        """What names a GPU, as it is written: `args.gpu` of `x.cuda(args.gpu)`, `torch.cuda.set_device(args.gpu)`."""
        return frozenset(ast.unparse(each) for _, each in self.picking if isinstance(each, ast.Attribute))

    @cached_property
    def picked_names(self) -> frozenset[Hashable]:
        """The names that do, each by whose it is."""
        return frozenset(binding(self, each) for _, each in self.picking if isinstance(each, ast.Name))

    @cached_property
    def changes(self) -> Changes:
        """What is written between where the processes start and lines further down."""
        return Changes(self)

    @cached_property
    def picking(self) -> list[tuple[ast.expr, ast.expr]]:
        """The calls that move something to a GPU which they name, or make it the current one; with what they name."""
        named = ((c, c.args[0] if c.args else keyword(c, "device")) for c in self.source.calls)
        moves = ((c, to) for c, to in named if to is not None and isinstance(c.func, ast.Attribute))
        return [(call, to) for call, to in moves if last_name(call.func) in ("cuda", "set_device")]

    @cached_property
    def spelling(self) -> list[tuple[ast.expr, ast.expr]]:
        """What spells a GPU, with its number: `f"cuda:{gpu}"`, and in a `torch.device` also `"cuda:1"`."""
        made = {n for c in self.source.calls if self.names.qualified(c.func) == "torch.device" for n in ast.walk(c)}
        found = ((n, index_of(n)) for n in self.source.nodes if n in made or not isinstance(n, ast.Constant))
        return [(n, index) for n, index in found if index is not None and isinstance(n, ast.expr)]

    @cached_property
    def given(self) -> dict[int, Given]:
        """What `ddp.setup()` is given at each of the `launches`, by its `id`."""
        return {id(launch): given_devices(self, launch) for launch in self.launches}

    def comes_to(self, launch: Launch, node: ast.AST) -> bool:
        """Whether a script can come to a node from where its processes start."""
        return node not in launch.apart and self.running.comes_to(launch.entry, node)

    def runs_on_gpus(self, launch: Launch, node: ast.AST) -> bool:
        """Whether a line behind the launch may be reached where there is a GPU."""
        return runs_on_gpus(self, launch, node)

    @cached_property
    def before(self) -> BeforeLaunch:
        """Finds what runs before the processes start."""
        return BeforeLaunch(self.loops, self.callers)

    @cached_property
    def parallel_entries(self) -> list[ast.Module]:
        """The scripts that come to a wrap over several devices, or may. All others stay single processes."""
        entries = (entry for entry in self.source.entry_trees if entry not in self._single_entries)
        return [entry for entry in entries if any(self.running.comes_to(entry, node) for node in self._wrapping)]

    @cached_property
    def on_one_device(self) -> frozenset[ast.Module]:
        """The files of scripts that train on one device, whatever they wrap, and stay as they are."""
        several = {launch.entry for launch in self.launches if not self.given[id(launch)].is_never_asked}
        single = {*self._single_entries, *(launch.entry for launch in self.launches)} - several
        programs = {entry: self.names.reachable(entry) for entry in self.source.entry_trees}
        others = (modules for entry, modules in programs.items() if entry not in single)
        return frozenset().union(*(programs[entry] for entry in single)).difference(*others)

    @cached_property
    def _single_entries(self) -> list[ast.Module]:
        return [e for e in self.source.entry_trees if self.wraps.are_on_one_device(partial(self.running.comes_to, e))]

    @cached_property
    def unreached(self) -> list[tuple[ast.stmt, str]]:
        """Functions, methods, classes and main guards that no script with a wrap comes to, and what to call them."""
        entries = self.parallel_entries
        analysed = [file.name for file in self.source.files]
        return reduce(or_, map(self.running.by, entries)).left(analysed) if entries else []

    @cached_property
    def _wrapping(self) -> list[ast.AST]:
        """What wraps."""
        calls = (*(wrap.call for wrap in self.wraps.models), *(call for _, call in self.wraps.device_ids))
        shared = (call for call in calls if call not in self.wraps.taken_off)
        return [*shared, *self.wraps.functional, *self.wraps.values, *self.wraps.optimizers]

    @cached_property
    def model_loops(self) -> list[DataLoop]:
        """The loops over loaders that feed a model."""
        return [loop for loop in self.loops.data_loops if self.loops.uses_model(loop)]

    @cached_property
    def loader_sites(self) -> list[ast.Call]:
        """The `DataLoader(...)` calls whose batches feed a model."""
        sites = {site for loop in self.model_loops for site in loop.sites} | self._drawn_otherwise()
        return sorted(sites, key=lambda s: (s.lineno, s.col_offset))

    @cached_property
    def foreign_loaders(self) -> list[ast.expr]:
        """What training loops iterate over that no `DataLoader(...)` of this program built."""
        return self.loops.foreign()

    def _drawn_otherwise(self) -> set[ast.Call]:
        # (Loaders in a data set, out of which its samples come, are each worker's own.)
        drawn = [*self.loops.irregular, *self.loops.given_away]
        parts = (part for node in drawn if node not in self.divergent.in_samples for part in ast.walk(node))
        return {site for part in parts if isinstance(part, ast.expr) for site in self.loops.sites_in(part)}

    @cached_property
    def own_tests(self) -> OwnTests:
        """What each rank may decide for itself."""
        return OwnTests(self._clocks, self.display)

    @cached_property
    def display(self) -> Display:
        """What only shows something."""
        return Display(self.source, self.names, self.loops, self.writers, self.callers, self._clocks.may_differ)

    @cached_property
    def _clocks(self) -> Clocks:
        return Clocks(self.source, self.names, self._same_to_all)

    def _same_to_all(self) -> list[ast.expr]:
        """What makes no difference though it is made of a rank's own values: what is rank 0's, or only used there."""
        asked = (c for c in self.source.calls if self.listings.is_question(c) or self.listings.is_listing(c))
        return [*asked, *filter(self._is_told, self.own_values.values), *self.own_values.of_rank_0]

    def _is_told(self, value: ast.expr) -> bool:
        """Whether a value is rank 0's for sure: where a rank may be alone, nobody tells it."""
        apart = (ast.If, ast.Try, ast.Lambda, ast.ClassDef)
        return not any(isinstance(above, apart) for above in self.source.ancestors(value))

    @cached_property
    def own_values(self) -> OwnValues:
        """The values of a rank's own that end in paths and seeds."""
        uses, shared = RankZeroUses(self.reaching, self.writers), self.files.shared
        return OwnValues(
            self.source, self.names, self.before, self.launches, self.reaching, self.catalogue, uses, shared
        )

    @cached_property
    def callers(self) -> Callers:
        """Who calls which function."""
        return Callers(self.source, self.resolver)

    @cached_property
    def needing_all(self) -> ComingTo:
        """What takes all ranks."""
        found: set[ast.AST] = {c for c in self.source.calls if self.resolver.holds(c.func, Wrapped)}
        found.update(loop.node for loop in self.model_loops)
        found.update(wrap.call for wrap in self.wraps.models)
        return ComingTo(self.callers, found | {*self.wraps.functional, *self.wraps.values})

    @cached_property
    def provenance(self) -> Provenance:
        """Where values come from."""
        return Provenance(self.source, self.names, self.resolver)

    @cached_property
    def reaching(self) -> ReachingDefinitions:
        """What values are computed from."""
        return ReachingDefinitions(self.provenance)

    @cached_property
    def writers(self) -> Writers:
        """What writes files and reports."""
        return Writers(self.names, self.resolver, self.provenance, self.catalogue)

    @cached_property
    def listings(self) -> Listings:
        """What asks for files."""
        return Listings(self.source, self.names, self.provenance, self.catalogue)

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
    def divergent(self) -> RankDivergent:
        """Where a rank may be alone."""
        return RankDivergent(self.fetching, self.own_tests.branches, self.threads)

    @cached_property
    def threads(self) -> Threads:
        """The threads and processes that the script starts beside its ranks."""
        return Threads(self.source, self.names, self.resolver)

    @cached_property
    def steps(self) -> list[Step]:
        """What the first rank of each machine runs before the others, to fetch files."""
        apart = self.divergent.apart
        return [s for s in self.fetching.in_turn if s.statement not in apart and not self.before_launch(s.call)]

    @cached_property
    def fetched_to(self) -> list[ast.stmt]:
        """The statements that make the folders of these steps, on all ranks."""
        made = Folders(self.fetching, self.reaching).of(self.steps)
        return [each for each in made if each not in self.divergent.nodes and not self.before_launch(each)]

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
    def per_sample(self) -> set[ast.AST]:
        """What may run for a sample or a part of the ranks alone: datasets, samplers, functions handed to others."""
        return set(self.loops.reached(*self.divergent.sampling_classes, *self.divergent.handed_on))

    def on_all_ranks(self, node: ast.expr) -> bool:
        """Whether every rank runs a line, and equally often."""
        return node not in self.divergent.nodes and not self.before_launch(node)

    def before_launch(self, node: ast.expr | ast.stmt) -> bool:
        """Whether a line runs before the processes start: a module's, until then; one that is imported, altogether; in
        the function where they start, what stands above; and what only such lines call."""
        return self._runs_before(node, self._called_before)

    @cached_property
    def _called_before(self) -> set[FunctionNode]:
        """The functions that are only called before the processes start."""
        holding = {self.source.function(each.statement) for each in self.launches if each.statement is not None}
        waiting = [each for each in self.source.functions if each not in holding and self.callers.of(each)]
        found: set[FunctionNode] = set()
        while True:
            new = {f for f in waiting if all(self._runs_before(call, found) for call in self.callers.of(f))}
            if new == found:
                return found
            found = new

    def _runs_before(self, node: ast.expr | ast.stmt, called: Collection[FunctionNode]) -> bool:
        function = self.source.function(node)
        body = None if function is None else function.body[0]
        if (
            function is not None
            and body is not None
            and (node.lineno, node.col_offset) < (body.lineno, body.col_offset)
        ):
            function = self.source.function(function)  # a default or a decorator: where the function is defined
        if function in called:
            return True
        if function is not None:
            starts = [launch.statement for launch in self.launches if launch.statement is not None]
            here = [start for start in starts if self.source.function(start) is function]
            return not starts or any(node.lineno < start.lineno for start in here)
        module = self.source.module(node)
        launch = next((one for one in self.launches if one.entry is module), None)
        return launch is None or launch.statement is None or node in self.before.up_to(module, launch.statement)
