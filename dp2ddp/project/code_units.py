"""A file cut into pieces that run as a whole or not at all, and what each of them names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.project.importing import STAR, Import
from dp2ddp.source.nodes import ANY_NAME, is_main_guard, last_name, names_in, parameters, text_pattern

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Decorators that keep what they are given to themselves; any other may hand it on to anybody.
_QUIET = frozenset(
    "no_grad enable_grad inference_mode autocast staticmethod classmethod property cached_property abstractmethod "
    "setter lru_cache cache contextmanager dataclass wraps script total_ordering".split()
)
#: By these, what stands in the file itself is picked by a computed name;
PICKING_HERE = frozenset({"globals", "locals", "eval", "exec", "Fire"})
#: by these, what stands in any module.
PICKING_ANYWHERE = frozenset({"import_module", "__import__", "locate", "import_string", "instantiate"})
_MODULES = ("sys", "modules")


@dataclass(eq=False)
class Unit:
    """A piece of a file that runs as a whole or not at all.

    Attributes:
        path: its file.
        nodes: its syntax.
        name: what to call it; empty for what runs at import.
    """

    path: str
    nodes: list[ast.AST]
    name: str = ""

    @cached_property
    def said(self) -> Said:
        """What it names."""
        return Said(self.nodes)


class Said:
    """What a piece of code names.

    Attributes:
        names: single names.
        chains: `a.b.c`, as its parts.
        attributes: names behind a dot of what is no name, and those that `getattr` is given.
        texts: the words of its strings.
        picked: of what something is picked by a computed name (None for anything), and a pattern of that name.
        picks: the functions by which it picks in its own file or in any module.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.names: set[str] = set()
        self.chains: set[tuple[str, ...]] = set()
        self.attributes: set[str] = set()
        self.texts: set[str] = set()
        self.picked: set[tuple[tuple[str, ...] | None, str]] = set()
        self.picks: set[str] = set()
        waiting = list(nodes)
        parameters = {name for node in waiting if isinstance(node, _FUNCTIONS) for name in _parameters(node)}
        while waiting:
            node = waiting.pop()
            waiting += self._read(node)
        self.names -= parameters
        if "exec" in self.picks and any("import" in text for text in self.texts):
            self.picks.add("import_module")

    def _read(self, node: ast.AST) -> Iterable[ast.AST]:
        """Takes what a node says, and returns what is left of it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.texts.update(node.value.split("."))
        if isinstance(node, ast.Name):
            self.names.add(node.id)
            self.picks |= {node.id} & (PICKING_HERE | PICKING_ANYWHERE)
        if isinstance(node, ast.Call) and self._call(node):
            return node.args
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call) and _is_getattr(node.value):
            return [*node.value.args, node.slice]  # what has items is no function
        if isinstance(node, ast.Subscript) and chain_of(node.value) == _MODULES and last_name(node.slice) == "__name__":
            self.picks.add("globals")  # this file
            return ()
        if not isinstance(node, ast.Attribute):
            return ast.iter_child_nodes(node)
        self.picks |= {node.attr} & {*PICKING_ANYWHERE, "Fire"}
        chain = chain_of(node)
        if node.attr == "__dict__" and not (chain and chain[0] == "self"):
            self.picked.add((chain[:-1] if chain else None, ANY_NAME))
        if not chain:
            self.attributes.add(node.attr)
            return [node.value]
        self.chains.add(chain)
        if chain == _MODULES:
            self.picks.add("import_module")
        return ()

    def _call(self, node: ast.Call) -> bool:
        """Takes what a call picks; whether that is all that its function says."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if _is_getattr(node):
            given = node.args[1]
            if isinstance(given, ast.Constant):
                self.attributes.add(str(given.value))
                self.chains.update((*chain, str(given.value)) for chain in [chain_of(node.args[0])] if chain)
            else:
                self.picked.add((chain_of(node.args[0]), text_pattern(given)))
        elif name == "vars":
            self.picks |= set() if node.args else {"locals"}
            self.picked.update((chain_of(each), ANY_NAME) for each in node.args)
        elif name == "eval" and node.args:
            found = _EVALUATED.fullmatch(text_pattern(node.args[0]))
            if found is not None:
                self.picked.add((tuple(found[1].split(r"\.")), found[2]))
            return found is not None
        return False


def _is_getattr(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "getattr" and len(call.args) > 1


#: `eval("self." + name + "_loss")` and the like, as a pattern: what has the attribute, and the attribute.
_EVALUATED = re.compile(r"(\w+(?:\\\.\w+)*)\\\.((?:\w|\.\*)+)(?:\\\(\\\))?")


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names that mean what a function is given, and nothing else that its definition says."""
    given = function.args
    before = [*function.decorator_list, *given.defaults, *(each for each in given.kw_defaults if each is not None)]
    return parameters(function) - {name for each in before for name in names_in(each)}


def chain_of(node: ast.expr) -> tuple[str, ...] | None:
    """`a.b.c` as its parts; None for what doesn't begin with a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None


@dataclass(eq=False)
class ClassUnits:
    """A class: what runs where it is defined, and its methods."""

    node: ast.ClassDef
    header: Unit
    methods: dict[str, list[Unit]]
    handed_on: list[Unit]


@dataclass
class FileUnits:
    """A file, cut.

    Attributes:
        outside: what runs when it is imported.
        guard: what runs only when it is started.
        functions, classes: by name; those under conditions are part of what is outside.
        registered: classes that a decorator hands on.
        imports: what its names may mean elsewhere.
        stars: its star imports.
        stored: names that are assigned somewhere, or are parameters: an import may not be what they mean.
        lists_subclasses: all classes of a kind are asked for.
    """

    outside: Unit
    guard: Unit
    functions: dict[str, list[Unit]] = field(default_factory=dict)
    classes: dict[str, list[ClassUnits]] = field(default_factory=dict)
    registered: list[ClassUnits] = field(default_factory=list)
    imports: dict[str, list[Import]] = field(default_factory=dict)
    stars: list[Import] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    lists_subclasses: bool = False

    @classmethod
    def cut(cls, path: str, tree: ast.Module) -> FileUnits:
        file = cls(Unit(path, []), Unit(path, [], "its lines under `__main__`"))
        for node in ast.walk(tree):
            file._read(node)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                made = _class(path, node)
                file.classes.setdefault(node.name, []).append(made)
                if not all(map(_is_quiet, node.decorator_list)) or any(
                    k.arg == "metaclass" and last_name(k.value) != "ABCMeta" for k in node.keywords
                ):
                    file.registered.append(made)
            elif isinstance(node, _FUNCTIONS) and all(map(_is_quiet, node.decorator_list)) and node.name[:2] != "__":
                file.functions.setdefault(node.name, []).append(Unit(path, [node], node.name))
            elif is_main_guard(node):
                file.guard.nodes.append(node)
            elif not isinstance(node, (ast.Import, ast.ImportFrom)):
                file.outside.nodes.append(node)
        return file

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.stored.add(node.id)
        elif isinstance(node, ast.arg):
            self.stored.add(node.arg)
        elif isinstance(node, (ast.Attribute, ast.FunctionDef)):
            name = node.attr if isinstance(node, ast.Attribute) else node.name
            self.lists_subclasses |= name in ("__subclasses__", "__init_subclass__")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                self.imports.setdefault(name, []).append(Import(alias.name if alias.asname else name))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                one = Import(node.module or "", node.level, alias.name)
                if alias.name == STAR:
                    self.stars.append(one)
                else:
                    self.imports.setdefault(alias.asname or alias.name, []).append(one)

    def units(self) -> Iterator[Unit]:
        """All of its pieces."""
        yield from (self.outside, self.guard)
        yield from (unit for units in self.functions.values() for unit in units)
        for made in (each for several in self.classes.values() for each in several):
            yield made.header
            yield from (unit for units in made.methods.values() for unit in units)

    @cached_property
    def owners(self) -> dict[int, Unit]:
        """The innermost piece of each line; lines that only import have none."""
        spans = [(n.lineno, n.end_lineno, unit) for unit in self.units() for n in unit.nodes if isinstance(n, ast.stmt)]
        classes = (each for several in self.classes.values() for each in several)
        spans += [(made.node.lineno, made.node.end_lineno, made.header) for made in classes]
        spans.sort(key=lambda span: (span[0], -(span[1] or 0)))
        return {line: unit for start, end, unit in spans for line in range(start, (end or start) + 1)}


def _class(path: str, node: ast.ClassDef) -> ClassUnits:
    methods: dict[str, list[Unit]] = {}
    handed_on = []
    header: list[ast.AST] = [*node.decorator_list, *node.bases, *node.keywords]
    for each in node.body:
        if isinstance(each, _FUNCTIONS):
            method = Unit(path, [each], f"{node.name}.{each.name}")
            methods.setdefault(each.name, []).append(method)
            header += each.decorator_list
            if not all(map(_is_quiet, each.decorator_list)):
                handed_on.append(method)
        else:
            header.append(each)
    return ClassUnits(node, Unit(path, header, node.name), methods, handed_on)


def _is_quiet(decorator: ast.expr) -> bool:
    return last_name(decorator.func if isinstance(decorator, ast.Call) else decorator) in _QUIET
