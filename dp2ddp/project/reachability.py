"""What code a script can run, by the names that its code says.

Coarser than a call graph, and on the safe side. What is imported runs its module level. A function runs where code that
runs names it; names are followed through imports, as Python does. A class is made where it is named; then run its
methods that are said anywhere (`x.name`), those that Python calls (`__init__`), and all that a library may call: of its
class, or of any name where that isn't known. Where names are computed (`getattr(x, name)`, `globals()`,
`import_module`), all that they can pick is taken.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dp2ddp.project.code_units import (
    PICKING_ANYWHERE,
    PICKING_HERE,
    ClassUnits,
    FileUnits,
    Unit,
    chain_of,
)
from dp2ddp.project.importing import STAR
from dp2ddp.project.modules import stem
from dp2ddp.source.nodes import ANY_NAME, last_name
from dp2ddp.source.program import Resolve

#: Classes of others that call no methods of what derives from them.
_INERT = frozenset({"object", "ABC", "Generic", "Protocol", "Enum", "IntEnum", "Exception", "NamedTuple", "TypedDict"})
#: What torch's own classes have, so that torch may call what overrides it: patterns, which a test compares with torch.
TORCH_CALLS = {
    "Module": r"(T_destination|bfloat16|compile|cpu|cuda|double|dump_patches|eval|extra_repr|float|half|ipu|mtia|to"
    r"|to_empty|train|type|xpu)|_\w*_(impl|members|name|parallel)|_version|\w*(apply|buffers?|call_super|children|forward"
    r"|grad|hook|memory|module|parameter|state)\w*",
    **dict.fromkeys(("Dataset", "IterableDataset", "Sampler"), r"_\w+"),
    "DataLoader": r"_\w+|check_worker_number_rationality|multiprocessing_context",
    "Optimizer": r"_\w+|\w*(Hook|group|hook|state|step|zero_grad)\w*",
    **dict.fromkeys(("LRScheduler", "_LRScheduler"), r"_\w+|\w*_lr|load_state_dict|state_dict|step"),
}


def cut(trees: Mapping[str, ast.Module]) -> dict[str, FileUnits]:
    """Files, each cut into what runs as a whole or not at all."""
    return {path: FileUnits.cut(path, tree) for path, tree in trees.items()}


def reached(
    units: Mapping[str, FileUnits],
    entry: str,
    paths: Iterable[str],
    resolve: Resolve,
    functions: Sequence[str] = (),
    *,
    whole: bool = False,
) -> Reached:
    """What the script `entry`, made of those of the files `paths` that are in `units`, can run.

    Args:
        resolve: finds the file that an import means.
        functions: those by which it is started from outside; none for a script that is run.
        whole: any of its own functions may be started.
    """
    files = {path: units[path] for path in paths if path in units}
    search = _Search(files, resolve)
    search.start(entry, functions, whole=whole)
    return Reached(files, search.live)


class Reached:
    """What one script, or one of several, can run."""

    def __init__(self, files: Mapping[str, FileUnits], live: Collection[Unit]) -> None:
        self._files = dict(files)
        self._live = set(live)

    def __or__(self, other: Reached) -> Reached:
        return Reached({**self._files, **other._files}, self._live | other._live)

    def has(self, path: str, line: int) -> bool:
        """Whether a line of one of the files can run."""
        unit = self._files[path].owners.get(line) if path in self._files else None
        return path in self._files if unit is None else unit in self._live

    def lines(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Those of some lines, by file, that can run."""
        found = {path: sorted({line for line in lines if self.has(path, line)}) for path, lines in wanted.items()}
        return {path: lines for path, lines in found.items() if lines}

    def left(self, paths: Iterable[str]) -> list[tuple[ast.stmt, str]]:
        """Functions, classes, methods of classes that are made, and main guards that don't run, with their names."""
        found: list[tuple[ast.stmt, str]] = []
        for file in (self._files[path] for path in paths if path in self._files):
            functions = [unit for units in file.functions.values() for unit in units]
            for made in (each for several in file.classes.values() for each in several):
                if made.header in self._live:
                    functions += [unit for units in made.methods.values() for unit in units]
                else:
                    found.append((made.node, made.node.name))
            idle = (unit for unit in (*functions, file.guard) if unit not in self._live)
            found += [(node, unit.name) for unit in idle for node in unit.nodes if isinstance(node, ast.stmt)]
        return found


class _Search:
    """Finds what runs, beginning with what is started."""

    def __init__(self, files: Mapping[str, FileUnits], resolve: Resolve) -> None:
        self._files = files
        self._resolve = resolve
        self.live: set[Unit] = set()
        self._waiting: list[Unit] = []
        self._made: dict[ClassUnits, str] = {}  # and a pattern of its methods that others may call
        self._methods: dict[str, list[Unit]] = {}  # of these classes, by name
        # In which modules each name is defined; most names in code are in none of them.
        self._places: dict[str, set[str]] = {}
        for path, file in files.items():
            for name in (*file.functions, *file.classes, *file.imports):
                self._places.setdefault(name, set()).add(path)
        self._said: set[str] = set()
        self._values: set[str] = set()  # modules that are handed on
        self._used: set[tuple[str, str]] = set()
        self._chained: set[tuple[str, tuple[str, ...]]] = set()
        self._patterns: set[str] = set()  # of names that are computed, and may be said behind a dot
        self._texts = False  # names may be said in strings

    def start(self, entry: str, functions: Sequence[str], *, whole: bool) -> None:
        for file in self._files.values():
            self._run(file.outside)
            for made in file.registered:
                self._make(made)
        if any(file.lists_subclasses for file in self._files.values()):
            for file in self._files.values():
                self._make_all(file)
        if entry in self._files:
            file = self._files[entry]
            for function in functions:
                self._chain(entry, tuple(function.split(".")))
            if whole or not functions:
                self._run(file.guard)
            if whole:
                self._make_all(file)
                for unit in file.units():
                    self._run(unit)
        while self._waiting:
            self._follow(self._waiting.pop())

    def _run(self, unit: Unit) -> None:
        if unit not in self.live:
            self.live.add(unit)
            self._waiting.append(unit)

    def _follow(self, unit: Unit) -> None:
        said, path = unit.said, unit.path
        for name in said.names:
            self._use(path, name)
        for chain in said.chains:
            self._chain(path, chain)
        for name in said.attributes:
            self._say(name)
        for picked, pattern in said.picked:
            self._picked(path, picked, pattern)
        if said.picks & PICKING_HERE:
            self._take(path, ANY_NAME)
            self._say_any(ANY_NAME)
        if "eval" in said.picks or "exec" in said.picks:
            for name in self._files[path].imports:
                self._use(path, name)
        if said.picks & PICKING_ANYWHERE:
            self._texts = True
            for each in self._files:
                self._value(each)
            for other in list(self.live):
                self._say_all(other.said.texts)
        if self._texts:
            self._say_all(said.texts)

    def _say_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._say(name)

    def _say(self, name: str) -> None:
        if name in self._said:
            return
        self._said.add(name)
        for method in self._methods.get(name, ()):
            self._run(method)
        for module in list(self._values) if name in self._places else ():
            self._use_of_value(module, name)

    def _say_any(self, pattern: str) -> None:
        """Any name that fits may be said."""
        if pattern not in self._patterns:
            self._patterns.add(pattern)
            for made in list(self._made):
                self._run_methods(made)
            for module in list(self._values):
                self._take(module, pattern)

    def _use(self, path: str, name: str) -> None:
        """Runs what a name in a file means."""
        if (path, name) in self._used or path not in self._files:
            return
        self._used.add((path, name))
        file = self._files[path]
        for unit in file.functions.get(name, ()):
            self._run(unit)
        for made in file.classes.get(name, ()):
            self._make(made)
        for target, what in self._meant(path, name):
            if what is None:
                self._value(target)
            else:
                self._use(target, what)

    def _meant(self, path: str, name: str) -> Iterator[tuple[str, str | None]]:
        """What an imported name means: a file and a name in it, None for the file itself."""
        file = self._files[path]
        for one in file.imports.get(name, ()):
            target = self._resolve(path, one.module, one.level, one.name)
            if target is None:
                continue
            around = None if one.name is None else self._resolve(path, one.module, one.level, None)
            is_module = one.name is None or (target != around and stem(target) == one.name)
            yield target, None if is_module else one.name
        if name not in file.functions and name not in file.classes and name not in file.imports:
            for star in file.stars:
                target = self._resolve(path, star.module, star.level, STAR)
                if target is not None:
                    yield target, name

    def _chain(self, path: str, chain: tuple[str, ...]) -> None:
        """Runs what `a.b.c` means: of a module what it has of this name, of others all that has such a method."""
        if (path, chain) in self._chained:
            return
        self._chained.add((path, chain))
        root, rest = chain[0], chain[1:]
        file = self._files[path]
        if root not in file.imports or root in file.stored:
            self._use(path, root)
            self._say_all(rest)
        for one in file.imports.get(root, ()):
            if one.name is not None:
                self._from_chain(path, root, rest)
                continue
            # `import a.b.c` binds `a`; of `a.b.c.f` the longest part that is a module is meant.
            for end in range(len(rest), -1, -1):
                target = self._resolve(path, ".".join((one.module, *rest[:end])), 0, None)
                if target is not None:
                    self._of_module(target, rest[end:])
                    break

    def _from_chain(self, path: str, root: str, rest: tuple[str, ...]) -> None:
        for target, name in self._meant(path, root):
            if name is None:
                self._of_module(target, rest)
            else:
                self._use(target, name)
                self._say_all(rest)

    def _of_module(self, target: str, rest: tuple[str, ...]) -> None:
        if not rest:
            self._value(target)
        elif target in self._files:
            inner = [(path, name) for path, name in self._meant(target, rest[0]) if name is None]
            for path, _ in inner:
                self._of_module(path, rest[1:])
            if not inner:
                self._use(target, rest[0])
                self._say_all(rest[1:])

    def _picked(self, path: str, chain: tuple[str, ...] | None, pattern: str) -> None:
        """Something is picked from `chain` by a computed name."""
        file = self._files[path]
        imported = file.imports.get(chain[0], ()) if chain else ()
        if not chain or not imported or chain[0] in file.stored:
            if chain:
                self._chain(path, chain)
            self._say_any(pattern)
        for one in imported:
            parts = (one.module, one.name or "", *(chain or ())[1:])
            module = self._resolve(path, ".".join(filter(None, parts)), one.level, None)
            if module is not None:
                self._take(module, pattern)
            elif self._resolve(path, one.module, one.level, one.name) is not None:
                self._use(path, chain[0] if chain else "")
                self._say_any(pattern)

    def _take(self, path: str, pattern: str) -> None:
        """Any name of a file that fits may be used."""
        if path not in self._files or (path, f" {pattern}") in self._used:
            return
        self._used.add((path, f" {pattern}"))
        file = self._files[path]
        for name in (*file.functions, *file.classes, *file.imports):
            if re.fullmatch(pattern, name):
                self._use(path, name)
        for star in file.stars:
            target = self._resolve(path, star.module, star.level, STAR)
            if target is not None:
                self._take(target, pattern)

    def _value(self, path: str) -> None:
        """A module itself is handed on."""
        if path not in self._values:
            self._values.add(path)
            for pattern in list(self._patterns):
                self._take(path, pattern)
            for name in list(self._said):
                self._use_of_value(path, name)

    def _use_of_value(self, path: str, name: str) -> None:
        places = self._places.get(name, ())
        if path in places or (places and path in self._files and self._files[path].stars):
            self._use(path, name)

    def _make(self, made: ClassUnits) -> None:
        if made not in self._made:
            self._made[made] = self._called_by_others(made, set())
            for name, methods in made.methods.items():
                self._methods.setdefault(name, []).extend(methods)
            self._run(made.header)
            for method in made.handed_on:
                self._run(method)
            self._run_methods(made)

    def _run_methods(self, made: ClassUnits) -> None:
        """Runs those methods of a class that is made which may be called."""
        for name, methods in made.methods.items():
            is_pythons = name.startswith("__") and name.endswith("__")
            patterns = (self._made[made], *self._patterns)
            if is_pythons or name in self._said or any(re.fullmatch(pattern, name) for pattern in patterns):
                for method in methods:
                    self._run(method)

    def _make_all(self, file: FileUnits) -> None:
        for made in (each for several in file.classes.values() for each in several):
            self._make(made)

    def _called_by_others(self, made: ClassUnits, seen: set[ClassUnits]) -> str:
        """A pattern of the methods that may be called by the libraries from whose classes a class derives."""
        seen.add(made)
        patterns = []
        for base in made.node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            if last_name(named) in _INERT:
                continue
            chain = chain_of(named) or ("",)
            found = list(self._classes(made.header.path, chain, set()))
            others = [] if found else self._library_names(made.header.path, chain) or [""]
            patterns += [self._called_by_others(each, seen) for each in found if each not in seen]
            patterns += [
                TORCH_CALLS.get(each.split(".")[-1] if each[:6] == "torch." else "", ANY_NAME) for each in others
            ]
        return "|".join(patterns)

    def _library_names(self, path: str, chain: tuple[str, ...]) -> list[str]:
        """What a name, or a name of a module, may mean elsewhere, with dots: `torch.nn.Module`."""
        file = self._files[path]
        imports = () if chain[0] in file.stored else file.imports.get(chain[0], ())
        return [".".join(filter(None, ("." * one.level + one.module, one.name, *chain[1:]))) for one in imports]

    def _classes(self, path: str, chain: tuple[str, ...], seen: set[tuple[str, str]]) -> Iterator[ClassUnits]:
        """The classes that a name, or a name of a module, may mean."""
        name, rest = chain[0], chain[1:]
        if path not in self._files or (path, name) in seen:
            return
        seen.add((path, name))
        file = self._files[path]
        if not rest:
            yield from file.classes.get(name, ())
        for target, what in self._meant(path, name):
            if what is not None and not rest:
                yield from self._classes(target, (what,), seen)
            elif what is None and rest:
                yield from self._classes(target, rest, seen)
