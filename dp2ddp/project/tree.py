"""Walks a project's folder: its files, and those folders of it that count; what git ignores isn't entered."""

from __future__ import annotations

import os
import posixpath
import stat
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.project.python_files import PythonFiles

_IGNORED = "ignored by git"
_HISTORIES = frozenset({".git", ".hg", ".svn"})
_CACHES = frozenset({"__pycache__", "node_modules", ".ipynb_checkpoints"})


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
        """The Python files. A file that git ignores is one of them as soon as it is asked for by its path."""
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

    def refuse(error: OSError) -> None:
        folder, todo = os.path.relpath(error.filename, root), "make it readable, or let git ignore it"
        raise BadInput(folder, what=f"can't be read ({error.strerror})", todo=todo)

    tree = Tree(root)
    ignored = _ignored(root)
    for place, folders, files in os.walk(root, onerror=refuse):
        above = os.path.relpath(place, root).replace(os.sep, "/")
        entered = []
        for name in [*folders, *files]:
            path = posixpath.normpath(posixpath.join(above, name))
            mode = os.lstat(root / path).st_mode
            why = _IGNORED if path in ignored else _reason(root / path, mode)
            if why is not None:
                tree.left_out[path] = why
            elif stat.S_ISDIR(mode):
                entered.append(name)
                tree.folders.append(path)
            else:
                (tree.links if stat.S_ISLNK(mode) else tree.files).append(path)
        folders[:] = entered
    for found in (tree.folders, tree.files, tree.links):
        found.sort()
    return tree


def _reason(path: Path, mode: int) -> str | None:
    """Why something is left out whatever git says, in a few words; None where it isn't."""
    if not stat.S_ISDIR(mode):
        return None if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else "neither files nor folders"
    if path.name in _HISTORIES:
        return "version control"
    if path.name in _CACHES or path.name.endswith(".egg-info"):
        return "caches and builds"
    if os.path.isfile(path / "pyvenv.cfg") or os.path.isdir(path / "conda-meta"):
        return "virtual environments"
    return None


def _ignored(root: Path) -> frozenset[str]:
    """The files and folders that git ignores; none outside of a repository."""
    # (A repository's own settings may name a program for git to start.)
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--others", "--ignored", "--exclude-standard"]
    try:
        done = subprocess.run(
            [*command, "--directory"], cwd=root, check=True, stdin=subprocess.DEVNULL, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return frozenset()
    return frozenset(path.rstrip("/") for path in os.fsdecode(done.stdout).split("\0"))
