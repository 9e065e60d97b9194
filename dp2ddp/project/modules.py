"""Which file of a project an import means, and which files a script is made of. Read as Python would, never run."""

from __future__ import annotations

import os
import pkgutil
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from dp2ddp.errors import BadInput
from dp2ddp.project.imports import FileImports, read
from dp2ddp.project.python_files import PythonFiles

_INIT = "__init__.py"


class Layout:
    """The modules of a project.

    All paths are posix paths relative to the project's root. `files` maps each to its text; texts are only asked for as
    far as imports lead, so it may read them late.

    An absolute import is looked for in the script's own folder, in what the program adds to `sys.path`, in the folders
    above up to the root, and last (`PYTHONPATH` may lead there) in the one folder below these that has it, such as
    `src/` or `lib/`.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._read: dict[str, FileImports] = {}
        self._below: dict[str, Sequence[str]] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._programs: dict[str, list[str]] = {}
        self._found: dict[tuple[str, tuple[str, ...], str, int], Sequence[str]] = {}

    def resolve(self, importer: str, entry: str, module: str, level: int) -> str | None:
        """The file that an import in `importer` means when the script `entry` runs; None where it isn't the project's.

        Args:
            module: the dotted name after ``import`` or ``from``; may be empty after ``from .``.
            level: the number of dots before it.

        Returns:
            The module's file, a package's ``__init__.py``.
        """
        self._follow(entry)
        return next(reversed(self._run_by(importer, entry, module, level)), None)

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
        adding: list[str] = []
        found = [entry]
        while (more := [path for path in found if path not in adding and self.imports(path).additions]) or not adding:
            adding += more or [entry]
            self._folders[entry] = self._search_path(entry, adding)
            found = self._walk(entry)
        self._programs[entry] = found

    def _search_path(self, entry: str, adding: Sequence[str]) -> tuple[str, ...]:
        """The folders to look in, in order, each once: inserted ones, the script's own, appended ones, those above."""
        above = _above(entry)
        places: dict[bool, list[str]] = {True: [], False: []}
        for path in adding:
            # Where a script is started nobody knows: in its own folder, or in one above it.
            for each in self.imports(path).additions:
                starts = (posixpath.normpath(_join(start, each.folder)) for start in (posixpath.dirname(path), *above))
                places[each.first] += ["" if place == "." else place for place in starts if place[:2] != ".."]
        return tuple(dict.fromkeys([*places[True], above[0], *places[False], *above]))

    def _walk(self, entry: str) -> list[str]:
        found = {entry: None}
        waiting = [entry]
        while waiting:
            for target in self._targets(waiting.pop(0), entry):
                if target not in found:
                    found[target] = None
                    waiting.append(target)
        return list(found)

    def _targets(self, path: str, entry: str) -> Iterator[str]:
        """The files that one file imports, the packages around them included."""
        facts = self.imports(path)
        for each in facts.imports:
            yield from self._run_by(path, entry, each.module, each.level)
            if each.name is not None:  # which may be a module itself
                yield from self._run_by(path, entry, f"{each.module}.{each.name}".lstrip("."), each.level)
        for prefix in facts.prefixes:
            parts = prefix.split(".")
            folder = next((_join(root, *parts) for root in self._roots(parts, entry)), None)
            yield from () if folder is None else self._inside(folder)

    def _run_by(self, importer: str, entry: str, module: str, level: int) -> Sequence[str]:
        """The files that importing a module runs: packages, the module last; none where it isn't the project's."""
        asked = posixpath.dirname(importer) if level else posixpath.dirname(entry), self._folders[entry], module, level
        if asked not in self._found:  # the same names are asked about over and over
            self._found[asked] = self._look_up(importer, entry, module.split(".") if module else [], level)
        return self._found[asked]

    def _look_up(self, importer: str, entry: str, parts: Sequence[str], level: int) -> Sequence[str]:
        if level:
            above = _above(importer)
            roots = iter(above[level - 1 : level])
        else:
            roots = self._roots(parts, entry)
        for root in roots:
            bases = [_join(root, *parts[: count + 1]) for count in range(len(parts))] or [root]
            found = [self._module(base) for base in bases]
            if found[-1] is not None:
                return [each for each in found if each is not None]
        return ()

    def _roots(self, parts: Sequence[str], entry: str) -> Iterator[str]:
        """Where an absolute module may lie. What has a file of its own hides plain folders."""
        folders = self._folders[entry]
        for folder in folders:
            # `pkg/pkg.py` isn't `pkg`, unless its folder is none: such scripts are started as modules.
            is_inside = posixpath.basename(folder) == parts[0] and _join(folder, _INIT) in self._files
            if not is_inside and self._module(_join(folder, parts[0])) is not None:
                yield folder
                return
        yield from (folder for folder in folders if self._has(folder, parts))
        if parts[0] not in _standard_library():
            below = dict.fromkeys(each for folder in _above(entry) for each in self._folders_in(folder))
            # What lies in a package has a longer name: `foo/torch/__init__.py` is not `torch`.
            found = [each for each in below if _join(each, _INIT) not in self._files and self._has(each, parts)]
            yield from found if len(found) == 1 else ()

    def _has(self, folder: str, parts: Sequence[str]) -> bool:
        """Whether a module, or a folder of modules, lies at a place."""
        return self._module(_join(folder, *parts)) is not None or _join(folder, *parts) in self._folders_in(
            _join(folder, *parts[:-1])
        )

    def _folders_in(self, folder: str) -> Sequence[str]:
        if folder not in self._below:
            self._below[folder] = (
                self._files.folders(folder)
                if isinstance(self._files, PythonFiles)
                else [each for each in self._known_folders if posixpath.dirname(each) == folder and each]
            )
        return self._below[folder]

    @cached_property
    def _known_folders(self) -> Sequence[str]:
        return list(dict.fromkeys(folder for path in self._files for folder in _above(path)))

    def _inside(self, folder: str) -> Sequence[str]:
        """The files directly in a folder."""
        if isinstance(self._files, PythonFiles):
            return self._files.inside(folder)
        return sorted(path for path in self._files if posixpath.dirname(path) == folder)

    def _module(self, base: str) -> str | None:
        for path in (_join(base, _INIT), f"{base}.py"):
            if path in self._files:
                return path
        return None


def _above(path: str) -> list[str]:
    """The folders around a file, from its own up to the root."""
    above = [posixpath.dirname(path)]
    while (folder := posixpath.dirname(above[-1])) != above[-1]:  # (of "/" it is "/")
        above.append(folder)
    return above


def _join(folder: str, *parts: str) -> str:
    return "/".join(part for part in (folder, *parts) if part)


@lru_cache(maxsize=1)
def _standard_library() -> frozenset[str]:
    """The top names of Python's own modules."""
    folder = os.path.dirname(os.__file__)
    found = pkgutil.iter_modules([folder, os.path.join(folder, "lib-dynload")])
    return frozenset(sys.builtin_module_names).union(module.name for module in found)
