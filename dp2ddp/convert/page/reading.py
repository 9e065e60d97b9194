"""Facts to a flow: what a script comes to, by the names that it uses."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Module
from dp2ddp.analysis.roles.libraries import loads_whole_batches
from dp2ddp.analysis.wraps.wraps import Wrap
from dp2ddp.convert.page.deeds import Deeds
from dp2ddp.convert.page.flow import Flow, Link, Loader, Part
from dp2ddp.convert.page.held import Held
from dp2ddp.convert.plan import Plan
from dp2ddp.project.reachability import Reachability
from dp2ddp.source.nodes import in_order


def flow_of(facts: Facts, plan: Plan, entry: str, files: Collection[str]) -> Flow:
    """The flow of the script `entry`, which is made of `files`, as `plan` converts it; the facts may know of others."""
    return _Reader(facts, plan, entry, files).flow()


class _Reader:
    """Reads a flow off the facts: of what the script can come to, by the names that it uses."""

    def __init__(self, facts: Facts, plan: Plan, entry: str, files: Collection[str]) -> None:
        self.facts = facts
        self.source = facts.source
        self._held = Held(facts)
        self.entry = entry
        loops = facts.model_loops
        wraps = facts.wraps
        models: list[ast.expr] = [*(wrap.call for wrap in wraps.models), *wraps.functional]
        # Called by another name than `DataParallel`, such as a function's of the script that wraps.
        called = (node for loop in loops for node in facts.loops.models_called(loop.node))
        models += in_order({site for node in called for site in self._held.sites(node)} - set(models))
        loaders: list[ast.expr] = [*facts.loader_sites, *facts.foreign_loaders]
        lines = [*(node.lineno for node in (*models, *loaders)), *(loop.node.lineno for loop in loops)]
        used = self._used(files, {*lines, *(edit.span.start.line for edit in plan.edits)})
        self._models = [node for node in models if node.lineno in used]
        self._loaders = [node for node in loaders if node.lineno in used]
        self._loops = [loop for loop in loops if loop.node.lineno in used]
        self._edits = sorted((e for e in plan.edits if e.span.start.line in used), key=lambda edit: edit.span.start)

    def _used(self, files: Collection[str], lines: Iterable[int]) -> set[int]:
        """Those of the lines that the script can come to."""
        by_file: dict[str, list[int]] = {}
        for line in sorted(lines):
            by_file.setdefault(self.source.file_of_line(line).name, []).append(line)
        trees = {file.name: file.tree for file in self.source.files if file.name in files}
        reachability = Reachability(trees)
        started = self.source.commands.get(self.entry, ())
        found = reachability.of(self.entry, trees, self.source.resolve, started)
        return {line for lines in found.lines(by_file).values() for line in lines}

    def flow(self) -> Flow:
        deeds = Deeds(self.facts, self._models, self._edits)
        return Flow(
            self.entry,
            tuple(map(self._loader, self._loaders)),
            tuple(map(self._model, self._models)),
            tuple(dict.fromkeys(self._links())),
            tuple(deeds.found()),
            tuple(deeds.starts()),
        )

    def _loader(self, node: ast.expr) -> Loader:
        part, whole = self._held.part(node), isinstance(node, ast.Call) and loads_whole_batches(node)
        return Loader(part.name, part.detail, part.path, part.line, whole)

    def _links(self) -> Iterator[Link]:
        loops, loaders = self.facts.loops, self._loaders
        for loop in self._loops:
            for site in sorted(loop.sites & set(loaders), key=loaders.index):
                yield from self._to_models(loop.node, loaders.index(site), loops.trains(loop))
        for iterated in [node for node in loaders if node in self.facts.foreign_loaders]:
            node = next((n for n in self.source.ancestors(iterated) if isinstance(n, ast.For)), None)
            if node is not None:
                yield from self._to_models(node, loaders.index(iterated), True)

    def _to_models(self, loop: ast.For, loader: int, trains: bool) -> Iterator[Link]:
        found = self._run_in(loop)
        # A model that came through what isn't followed: it can only be the one that there is.
        only = self._models if not found and len(self._models) == 1 else []
        for model in [m for m in self._models if m in found] or only:
            yield Link(loader, self._models.index(model), trains)

    def _run_in(self, loop: ast.For) -> set[ast.expr]:
        """What stands for a model on several devices, and is called in a loop, or in the forward of a model there."""
        loops, wraps, classes = self.facts.loops, self.facts.wraps, self.facts.resolver.classes
        found: set[ast.expr] = set()
        reached: set[ast.AST] = set(loops.reached(*loop.body))
        for called in loops.models_called(loop):
            found |= self._held.sites(called)
            modules = [role for role in self.facts.resolver.roles(called) if isinstance(role, Module)]
            if modules:
                found |= {wrap.call for wrap in wraps.models if self._is_part(wrap)}
            owners = [role.definition for role in modules if role.definition is not None]
            forwards = [f.definition for owner in owners for f in classes.methods(owner, "forward")]
            reached.update(loops.reached(*forwards))
        return found.union(call for call in wraps.functional if call in reached)

    def _is_part(self, wrap: Wrap) -> bool:
        """Whether it becomes a part of something: `model.features = nn.DataParallel(model.features)`."""
        statement = self.source.statement(wrap.call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        return not targets or any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)

    def _model(self, node: ast.expr) -> Part:
        wrap = next((wrap for wrap in self.facts.wraps.models if wrap.call is node), None)
        if wrap is not None:
            return self._held.part(wrap.outer, detail=self.source.brief(node))
        part = self._held.part(node)
        owner = next((n for n in self.source.ancestors(node) if isinstance(n, ast.ClassDef)), None)
        # The functional form stands in a model's forward, and its result isn't the model.
        return part if owner is None else replace(part, name=owner.name)
