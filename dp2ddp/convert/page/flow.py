"""What a script does once it is converted, for a picture: loaders that feed models, and who writes what."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.files.opened import CHANGING
from dp2ddp.analysis.roles import Module, Wrapped
from dp2ddp.convert.plan import Plan
from dp2ddp.project.uses import Uses
from dp2ddp.rewrite.edits import Edit, InsertBefore, ReplaceExpr, WrapStatement
from dp2ddp.source.nodes import argument, in_order, keyword
from dp2ddp.source.program import ParsedProgram
from dp2ddp.source.spans import Span

#: Who does it: every process, process 0 for all, process 0 alone, the first process of each machine.
EVERY, TOLD, ALONE, MACHINE = "every", "told", "alone", "machine"
#: What the runtime's functions mean: what is done, and by whom.
_DEEDS = {
    "ddp.save": ("writes", ALONE),
    "ddp.main_only": ("writes", ALONE),
    "ddp.open": ("writes", ALONE),
    "ddp.load": ("reads", EVERY),
    "ddp.broadcast": ("decides", TOLD),
    "ddp.main_first": ("fetches", MACHINE),
}


@dataclass(frozen=True)
class Part:
    """A loader, a model, or something that is done, by its place in the program.

    Attributes:
        name: as the script calls it.
        detail: the source that makes it, on one line.
        path: the file, relative to the project.
        line: in that file, from 1.
    """

    name: str
    detail: str
    path: str
    line: int


@dataclass(frozen=True)
class Deed(Part):
    """Something that isn't done by every process alike.

    Attributes:
        what: ``writes``, ``reads``, ``decides``, ``fetches``.
        who: `EVERY`, `TOLD`, `ALONE` or `MACHINE`.
        models: the numbers of the models that go into it.
    """

    what: str
    who: str
    models: tuple[int, ...] = ()


@dataclass(frozen=True)
class Link:
    """A loop over the batches of `loader` that calls `model`, both by number; `trains` if it goes backward."""

    loader: int
    model: int
    trains: bool


@dataclass(frozen=True)
class Flow:
    """One script's: its loaders, models, the loops between them, what single processes do, where processes start."""

    entry: str
    loaders: tuple[Part, ...]
    models: tuple[Part, ...]
    links: tuple[Link, ...]
    deeds: tuple[Deed, ...]
    starts: tuple[Part, ...]


def flow_of(facts: Facts, plan: Plan, entry: str, files: Collection[str]) -> Flow:
    """The flow of the script `entry`, which is made of `files`, as `plan` converts it; the facts may know of others."""
    return _Reader(facts, plan, entry, files).flow()


class _Reader:
    """Reads a flow off the facts: of what the script can come to, by the names that it uses."""

    def __init__(self, facts: Facts, plan: Plan, entry: str, files: Collection[str]) -> None:
        self.facts = facts
        self.source: ParsedProgram = facts.source
        self.entry = entry
        loops = facts.model_loops
        wraps = facts.wraps
        models: list[ast.expr] = [*(wrap.call for wrap in wraps.models), *wraps.functional]
        # Called by another name than `DataParallel`, such as a function's of the script that wraps.
        models += in_order(
            {site for loop in loops for called in facts.loops.models_called(loop.node) for site in self._sites(called)}
            - set(models)
        )
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
        uses = Uses(trees, by_file)
        started = self.source.commands.get(self.entry) or (None,)
        found = [uses.wraps(self.entry, trees, name) for name in started]
        return {line for each in found for lines in each.values() for line in lines}

    def flow(self) -> Flow:
        return Flow(
            self.entry,
            tuple(map(self._part, self._loaders)),
            tuple(map(self._model, self._models)),
            tuple(dict.fromkeys(self._links())),
            tuple(self._deeds()),
            tuple(self._starts()),
        )

    # -- loaders and models ----------------------------------------------------------------------------------------

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
            found |= self._sites(called)
            modules = [role for role in self.facts.resolver.roles(called) if isinstance(role, Module)]
            if modules:
                found |= {wrap.call for wrap in wraps.models if wrap.root is not None}
            owners = [role.definition for role in modules if role.definition is not None]
            forwards = [f.definition for owner in owners for f in classes.methods(owner, "forward")]
            reached.update(loops.reached(*forwards))
        return found.union(call for call in wraps.functional if call in reached)

    def _sites(self, node: ast.expr) -> set[ast.Call]:
        """The wraps of which an expression can hold the model."""
        found = {role.site for role in self.facts.resolver.roles(node) if isinstance(role, Wrapped)}
        return found if len(found) < 2 else self._held_at(node, found)

    def _held_at(self, node: ast.expr, sites: set[ast.Call]) -> set[ast.Call]:
        """Of the wraps that a name can hold those that it can hold at `node`.

        Roles don't know of order; a picture is clearer where `net` after the training isn't `net` before it.
        """
        source, name = self.source, self.source.segment(node)
        around = [node, *source.ancestors(node)]
        own = [s for s in sites if source.scope(s) is source.scope(node) and self._name(s) == name]
        certain = [s for s in own if s.lineno < node.lineno and source.parent(source.statement(s)) in around]
        if not certain:
            return sites
        first = max(s.lineno for s in certain)
        # A loop comes back to what stands below in it.
        last = max([node.lineno, *(n.end_lineno or 0 for n in around if isinstance(n, (ast.For, ast.While)))])
        return {s for s in sites if s not in own or first <= s.lineno <= last}

    def _model(self, node: ast.expr) -> Part:
        wrap = next((wrap for wrap in self.facts.wraps.models if wrap.call is node), None)
        if wrap is not None:
            return self._part(wrap.outer, detail=self.source.brief(node))
        part = self._part(node)
        owner = next((n for n in self.source.ancestors(node) if isinstance(n, ast.ClassDef)), None)
        # The functional form stands in a model's forward, and its result isn't the model.
        return part if owner is None else replace(part, name=owner.name)

    def _part(self, node: ast.expr, *, detail: str | None = None) -> Part:
        file = self.source.file(node)
        text = self.source.brief(node) if detail is None else detail
        return Part(self._name(node) or text, text, file.name, node.lineno - file.before)

    def _name(self, node: ast.expr) -> str | None:
        """What the script calls a value: the target of its assignment, the key under which it stands."""
        below: ast.AST = node
        for above in self.source.ancestors(node):
            if isinstance(above, ast.Dict) and below in above.values:
                key = above.keys[above.values.index(below)]
                return None if key is None else self.source.brief(key)
            if isinstance(above, ast.DictComp):
                return None
            if isinstance(above, ast.Assign):
                return self.source.brief(above.targets[0])
            if isinstance(above, (ast.AnnAssign, ast.NamedExpr)):
                return self.source.brief(above.target)
            if isinstance(above, ast.stmt):
                return self._function(above)
            below = above
        return None

    def _function(self, statement: ast.stmt) -> str | None:
        """What is returned goes by the function's name."""
        function = self.source.function(statement)
        return f"{function.name}()" if isinstance(statement, ast.Return) and function is not None else None

    # -- what single processes do ----------------------------------------------------------------------------------

    def _starts(self) -> Iterator[Part]:
        for edit in self._edits:
            if isinstance(edit, InsertBefore) and any("ddp.setup(" in line for line in edit.lines):
                yield Part("ddp.setup", edit.reason, *self._place(edit.span))

    def _deeds(self) -> Iterator[Deed]:
        calls = {self.source.span(node): call for call in self.source.calls for node in (call, call.func)}
        for edit in self._edits:
            known = next((deed for start, deed in _DEEDS.items() if start in _written(edit)), None)
            if known is None:
                continue
            what, who = known
            call = calls.get(edit.span)
            opens = None if call is None else self.facts.files.opened(call)
            if opens is not None and not opens.writes:
                what, who = "reads", EVERY
            name = None if call is None else self._target(call)
            detail = self._text(edit.span) if call is None else self.source.brief(call)
            models = () if call is None or what != "writes" else tuple(self._in_it(call))
            yield Deed(name or detail, detail, *self._place(edit.span), what, who, models)

    def _target(self, call: ast.Call) -> str | None:
        """The file that a call writes or reads, as written."""
        path = self.facts.names.qualified(call.func) or ""
        given: ast.expr | None = None
        opened = self.facts.files.opened(call)
        writing = self.facts.writers.of(call)
        if path == "torch.save":
            given = argument(call, 1, "f")
        elif path in ("torch.load", "torch.jit.load"):
            given = argument(call, 0, "f")
        elif path in CHANGING:
            given = argument(call, *CHANGING[path])
        elif opened is not None:
            given = opened.path
        elif writing is not None and not writing.command and writing.names:
            given = writing.names[0]
        else:
            given = keyword(call, "log_dir") or keyword(call, "logdir")
        return None if given is None else self.source.brief(self._value(given))

    def _value(self, given: ast.expr) -> ast.expr:
        """What a name stands for, where that is one thing."""
        if not isinstance(given, ast.Name):
            return given
        values = [value for value in self.facts.provenance.of(given) if not isinstance(value, (ast.Name, ast.Tuple))]
        return values[0] if len(values) == 1 else given

    def _in_it(self, call: ast.Call) -> Iterable[int]:
        """The models whose state a call is given."""
        given = [node for value in (*call.args, *(k.value for k in call.keywords)) for node in ast.walk(value)]
        held = {site for node in given if isinstance(node, ast.expr) for site in self._sites(node)}
        return [number for number, model in enumerate(self._models) if model in held]

    def _text(self, span: Span) -> str:
        return " ".join(self.source.lines[span.start.line - 1].split())

    def _place(self, span: Span) -> tuple[str, int]:
        file = self.source.file_of_line(span.start.line)
        return file.name, span.start.line - file.before


def _written(edit: Edit) -> str:
    """What an edit writes, up to the original's own text."""
    if isinstance(edit, ReplaceExpr):
        return edit.template
    return edit.header if isinstance(edit, WrapStatement) else ""
