"""Which file of a project an import means, and which files a script is made of. Read as Python would, never run."""

from __future__ import annotations

import os
import pkgutil
import posixpath
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from dp2ddp.errors import BadInput
from dp2ddp.project.importing import STAR, Addition, FileImports, Import, read
from dp2ddp.project.python_files import PythonFiles

_INIT = "__init__.py"
Libraries = Mapping[str, frozenset[str]]


class Layout:
    """The modules of a project.

    All paths are posix paths relative to the project's root. `files` maps each to its text; texts are only asked for as
    far as imports lead, so it may read them late.

    An absolute import is looked for in the script's own folder, in what the program adds to `sys.path`, in the folders
    above up to the root, and last (`PYTHONPATH` may lead there) wherever the project has exactly one file whose path
    ends so.

    Args:
        disk: what is known of the project where `files` doesn't yield all of it. Such a last place is then looked for
            one folder below those above (`lib/`, `src/`).
        libraries: what each is known for. A module or package of its name that binds that is a copy of it.
    """

    def __init__(
        self, files: Mapping[str, str], libraries: Libraries | None = None, *, disk: PythonFiles | None = None
    ) -> None:
        self._files = files
        self._libraries = libraries or {}
        self._disk = disk
        self._below: dict[str, Sequence[str]] = {}
        self._read: dict[str, FileImports] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._programs: dict[str, list[str]] = {}
        self._resolved: dict[tuple[str, Hashable, Import], str | None] = {}
        self._led_to: dict[tuple[str, Hashable], Sequence[str]] = {}

    def resolve(self, importer: str, entry: str, module: str, level: int, name: str | None) -> str | None:
        """The file that an import in `importer` means when the script `entry` runs; None where it isn't the project's.

        Args:
            module: the dotted name after ``import`` or ``from``; may be empty after ``from .``.
            level: the number of dots before it.
            name: what is imported from it, ``"*"`` for everything; None for ``import module``.

        Returns:
            The module's file, a package's ``__init__.py``. Of ``from module import name`` the file of the submodule
            where `name` is one; the file of `module` itself where that binds `name`, or has nothing of this name.
        """
        self._follow(entry)
        return self._resolve(importer, entry, Import(module, level, name))

    def reachable(self, entry: str) -> list[str]:
        """The files that the script `entry` may import, itself first, in the order in which imports lead to them."""
        self._follow(entry)
        return list(self._programs[entry])

    def imports(self, path: str) -> FileImports:
        """What the file says about imports; empty where it can't be read or is no Python."""
        if path not in self._read:
            try:
                self._read[path] = read(self._files[path], path)
            except BadInput:
                self._read[path] = FileImports(is_python=False)
        return self._read[path]

    def _follow(self, entry: str) -> None:
        """Finds the program's files; again while a file that was found adds folders to look in."""
        if entry in self._programs:
            return
        added: list[Addition] = []
        more: Sequence[Addition] = self.imports(entry).additions
        found: list[str] = []
        while more or not found:
            added.extend(more)
            self._folders[entry] = _search_path(entry, added)
            found = self._walk(entry)
            more = [each for path in found for each in self.imports(path).additions if each not in added]
        self._programs[entry] = found

    def _walk(self, entry: str) -> list[str]:
        found = {entry: None}
        waiting = [entry]
        while waiting:
            path = waiting.pop(0)
            asked = path, self._place(entry)
            if asked not in self._led_to:
                self._led_to[asked] = tuple(dict.fromkeys(self._targets(path, entry)))
            for target in self._led_to[asked]:
                if target not in found:
                    found[target] = None
                    waiting.append(target)
        return list(found)

    def _targets(self, path: str, entry: str) -> Iterator[str]:
        """The files that one file imports, the packages around them included."""
        facts = self.imports(path)
        for each in facts.imports:
            target = self._resolve(path, entry, each)
            if target is not None:
                root = target if each.level else target.rpartition("/".join(_parts(each.module)))[0]
                yield from self._packages(target, path, root)
                yield target
        for prefix in facts.folders:
            package = self._resolve(path, entry, Import(prefix))
            if package is not None and package.endswith(_INIT):
                yield package
                yield from self._inside(posixpath.dirname(package))
            elif package is None:  # a folder without an `__init__.py`
                bases = self._bases(_parts(prefix), entry, None)
                yield from next(filter(None, map(self._inside, bases)), ())

    def _packages(self, target: str, importer: str, root: str) -> Iterator[str]:
        """The ``__init__.py`` that run before `target` does, those of `importer` itself left out unless they are below
        the `root` of a whole name: a script's own package is one only then.
        """
        folder = posixpath.dirname(target)
        while folder and _join(folder, _INIT) in self._files:
            if importer.startswith(f"{folder}/") and len(folder) < len(root):
                return
            yield _join(folder, _INIT)
            folder = posixpath.dirname(folder)

    def _place(self, entry: str) -> Hashable:
        """What the files that imports mean depend on: the same for most scripts of a folder."""
        return self._folders[entry], posixpath.dirname(entry)

    def _resolve(self, importer: str, entry: str, what: Import) -> str | None:
        asked = importer, self._place(entry), what
        if asked not in self._resolved:  # the same names are asked about over and over
            self._resolved[asked] = self._look_up(importer, entry, what)
        return self._resolved[asked]

    def _look_up(self, importer: str, entry: str, what: Import) -> str | None:
        if what.level:
            folder: str | None = posixpath.dirname(importer)
            for _ in range(what.level - 1):
                folder = posixpath.dirname(folder) if folder else None
            bases = [] if folder is None else [_join(folder, *_parts(what.module))]
        else:
            bases = list(self._bases(_parts(what.module), entry, what.name))
        for base in bases:
            found = self._file(base, what.name, entry, importer)
            if found is not None:
                return None if any(map(self._is_library, (found, *self._packages(found, importer, found)))) else found
        return None

    def _is_library(self, path: str) -> bool:
        name, facts = stem(path), self.imports(path)
        known_for = self._libraries.get(name, frozenset()).intersection(facts.names)
        # What imports the library is around it: `lib/visdom.py` with `from visdom import Visdom`.
        return bool(known_for) and all(each.level or each.module.split(".")[0] != name for each in facts.imports)

    def _bases(self, parts: Sequence[str], entry: str, name: str | None) -> Iterator[str]:
        """Where an absolute module may lie, without its suffix. What has a file of its own hides plain folders."""
        if not parts:
            return
        folders = self._folders[entry]
        for folder in folders:
            # `pkg/pkg.py` isn't `pkg`, unless its folder is none: such scripts are started as modules.
            is_inside = posixpath.basename(folder) == parts[0] and _join(folder, _INIT) in self._files
            if not is_inside and self._module(_join(folder, parts[0])) is not None:
                yield _join(folder, *parts)
                return
        yield from (_join(folder, *parts) for folder in folders)
        if parts[0] not in _standard_library():
            found = self._only(parts, entry)
            yield from found
            if name is not None and name != STAR and not found and (self._disk or not self._endings[parts[-1]]):
                yield from (posixpath.dirname(base) for base in self._only([*parts, name], entry))

    def _only(self, parts: Sequence[str], entry: str) -> list[str]:
        """The one place in the project whose path ends in these parts, if there is exactly one."""
        ending = "/".join(parts)
        if self._disk is not None:
            below = (each for folder in _above(entry) for each in self._folders_in(folder))
            places = [_join(each, ending) for each in below if self._has(each, parts[0])]
            found = [base for base in dict.fromkeys(places) if self._module(base) is not None]
        else:
            found = [base for base in self._endings[parts[-1]] if base == ending or base.endswith(f"/{ending}")]
        # What lies in a package has a longer name: `src/foo/foo.py` is no `foo` where `src/foo` is a package, and
        # `foo/torch/__init__.py` is not `torch`.
        apart = [base for base in found if _join(base[: -len(ending) - 1], _INIT) not in self._files]
        found = apart or ([] if parts[0] in self._libraries else found)
        return found if len(found) == 1 else []

    def _folders_in(self, folder: str) -> Sequence[str]:
        if folder not in self._below:
            self._below[folder] = () if self._disk is None else self._disk.folders(folder)
        return self._below[folder]

    def _has(self, folder: str, part: str) -> bool:
        """Whether a module or a folder of modules lies directly in a folder."""
        return self._module(_join(folder, part)) is not None or _join(folder, part) in self._folders_in(folder)

    def _inside(self, folder: str) -> Sequence[str]:
        """The files directly in a folder."""
        return self._known_inside.get(folder, ()) if self._disk is None else self._disk.inside(folder)

    def _file(self, base: str, name: str | None, entry: str, importer: str) -> str | None:
        own = self._module(base)
        if name is None or name == STAR or (own is not None and not own.endswith(_INIT)):
            return own
        part = self._module(_join(base, name))
        # A package that imports a name from itself can only mean a module in it.
        if part is not None and (own in (None, importer) or not self._binds(own, name, entry, set())):
            return part
        return own

    def _binds(self, path: str, name: str, entry: str, seen: set[str]) -> bool:
        """Whether the module at `path` binds `name` to something of its own, be it by a star import."""
        seen.add(path)
        facts = self.imports(path)
        if name in facts.names:
            return True
        for star in facts.stars:
            source = self._resolve(path, entry, star)
            if source is None or source in seen:
                continue
            public = self.imports(source).public
            if (not name.startswith("_") if public is None else name in public) and self._binds(
                source, name, entry, seen
            ):
                return True
        return False

    def _module(self, base: str) -> str | None:
        for path in (_join(base, _INIT), f"{base}.py"):
            if path in self._files:
                return path
        return None

    @cached_property
    def _endings(self) -> Mapping[str, Sequence[str]]:
        """Modules without their suffix, by the last part of their names."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in self._files:
            base = posixpath.dirname(path) if posixpath.basename(path) == _INIT else posixpath.splitext(path)[0]
            found[posixpath.basename(base)].append(base)
        return found

    @cached_property
    def _known_inside(self) -> Mapping[str, Sequence[str]]:
        """The files directly in each folder."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in sorted(self._files):
            found[posixpath.dirname(path)].append(path)
        return found


def stem(path: str) -> str:
    """What a file's module is called, a package's file by its folder."""
    folder, name = posixpath.split(path)
    return posixpath.basename(folder) if name == _INIT and folder else posixpath.splitext(name)[0]


def module_name(path: str, files: Collection[str]) -> str:
    """What to call a file's module where it is imported, with the packages around it."""
    folder = posixpath.dirname(path)
    parts = [stem(path)]
    if posixpath.basename(path) == _INIT:
        folder = posixpath.dirname(folder)
    while _join(folder, _INIT) in files:
        parts.append(posixpath.basename(folder))
        folder = posixpath.dirname(folder)
    return ".".join(reversed(parts))


def _search_path(entry: str, added: Sequence[Addition]) -> tuple[str, ...]:
    """The folders to look in, in order, each once: inserted ones, the script's own, appended ones, those above."""
    above = _above(entry)
    places: dict[bool, list[str]] = {True: [], False: []}
    for each in added:
        # Where a script is started nobody knows: in its own folder, or in one above it.
        for start in [""] if each.anchored else above:
            place = posixpath.normpath(_join(start, each.folder))
            if not place.startswith(".."):
                places[each.first].append("" if place == "." else place)
    return tuple(dict.fromkeys([*places[True], above[0], *places[False], *above]))


def _above(entry: str) -> list[str]:
    """The folders around a file, from its own up to the root."""
    above = [posixpath.dirname(entry)]
    while (folder := posixpath.dirname(above[-1])) != above[-1]:  # (of "/" it is "/")
        above.append(folder)
    return above


def _parts(module: str) -> list[str]:
    return [part for part in module.split(".") if part]


def _join(folder: str, *parts: str) -> str:
    return "/".join(part for part in (folder, *parts) if part)


@lru_cache(maxsize=1)
def _standard_library() -> frozenset[str]:
    """The top names of Python's own modules."""
    folder = os.path.dirname(os.__file__)
    found = pkgutil.iter_modules([folder, os.path.join(folder, "lib-dynload")])
    return frozenset(sys.builtin_module_names).union(module.name for module in found)
