"""Walks a project's folder: its files, and those folders of it that count; what `ignored` names isn't entered."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.project import ignored
from dp2ddp.project.python_files import PythonFiles

_IGNORED = "named by .gitignore"
_SPECIAL = "neither files nor folders"


@dataclass
class Tree:
    """A folder as it was found. All paths are posix paths relative to `root`.

    Attributes:
        root: the folder.
        folders: those below it, parents first.
        files: regular files.
        links: symbolic links, to files and to folders.
        left_out: what was left out, and why: path to reason. Nothing below a folder that was left out is listed.
    """

    root: Path
    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> Mapping[str, int]:
        """How much was left out for each reason."""
        return Counter(self.left_out.values())

    def sources(self) -> PythonFiles:
        """The Python files. A file that `.gitignore` names is one of them as soon as it is asked for by its path."""
        return PythonFiles(self.root, (path for path in self.files if path.endswith(".py")), self._is_ignored)

    def _is_ignored(self, path: str) -> bool:
        while path:
            if path in self.left_out:
                return self.left_out[path] == _IGNORED
            path = posixpath.dirname(path)
        return False


def scan(root: Path) -> Tree:
    """Lists the folder `root`.

    Raises:
        BadInput: it, or a folder in it, can't be read.
    """
    tree = Tree(root)
    rules = ignored.GitIgnore(root)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with _readable(folder):
            rules.enter(folder)
            for entry in _entries(root, folder):
                _enter(tree, rules, posixpath.join(folder, entry.name), entry, waiting)
    for found in (tree.folders, tree.files, tree.links):
        found.sort()
    return tree


def _entries(root: Path, folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(root / folder) as entries:
        return list(entries)


@contextlib.contextmanager
def _readable(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        todo = "make it readable, or name it in .gitignore" if folder else ""
        raise BadInput(folder or ".", what=f"can't be read ({error.strerror})", todo=todo) from None


def _enter(tree: Tree, rules: ignored.GitIgnore, path: str, entry: os.DirEntry[str], waiting: list[str]) -> None:
    is_folder = entry.is_dir(follow_symlinks=False)
    why = ignored.reason(Path(entry.path)) if is_folder else None
    if why is None and rules.names(path, is_folder=is_folder):
        why = _IGNORED
    mode = entry.stat(follow_symlinks=False).st_mode
    if why is None and not (is_folder or entry.is_symlink() or stat.S_ISREG(mode)):
        why = _SPECIAL
    if why is not None:
        tree.left_out[path] = why
    elif is_folder:
        tree.folders.append(path)
        waiting.append(path)
    else:
        (tree.links if entry.is_symlink() else tree.files).append(path)
