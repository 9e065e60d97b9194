"""What of a folder is no part of the project: what `.gitignore` names, environments, caches."""

from __future__ import annotations

import os
import posixpath
import subprocess
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

_HISTORIES = frozenset({".git", ".hg", ".svn"})
_CACHES = frozenset({"__pycache__", "node_modules", ".ipynb_checkpoints"})


def reason(folder: Path) -> str | None:
    """Why a folder is left out whatever `.gitignore` says, in a few words; None where it isn't."""
    if folder.name in _HISTORIES:
        return "version control"
    if folder.name in _CACHES or folder.name.endswith(".egg-info"):
        return "caches and builds"
    if os.path.isfile(folder / "pyvenv.cfg") or os.path.isdir(folder / "conda-meta"):
        return "virtual environments"
    return None


class GitIgnore:
    """The `.gitignore` files of a folder and, in a repository, of the folders above it.

    Args:
        root: paths are posix paths relative to it.
    """

    def __init__(self, root: Path) -> None:
        self._specs: dict[str, GitIgnoreSpec] = {}
        self._above: list[tuple[str, GitIgnoreSpec]] = []
        place = root.resolve()
        prefix = ""
        while not (place / ".git").exists() and place.parent != place:
            prefix = f"{place.name}/{prefix}"
            place = place.parent
            spec = _load(place)
            if spec is not None:
                self._above.append((prefix, spec))
        if not (place / ".git").exists():
            self._above.clear()
        self._tracked = _tracked(root) if (place / ".git").exists() else frozenset[str]()
        self._root = root

    def enter(self, folder: str) -> None:
        """Reads the `.gitignore` of a folder, which has to be done before what is in it is asked about."""
        spec = _load(self._root / folder)
        if spec is not None:
            self._specs[folder] = spec

    def names(self, path: str, *, is_folder: bool) -> bool:
        """Whether the file or folder is ignored. The deepest `.gitignore` that names it decides.

        What git tracks isn't, nor a folder that it lies in.
        """
        if path in self._tracked:
            return False
        ending = "/" if is_folder else ""
        folder = posixpath.dirname(path)
        while True:
            spec = self._specs.get(folder)
            verdict = None if spec is None else spec.check_file(posixpath.relpath(path, folder or ".") + ending).include
            if verdict is not None:
                return verdict
            if not folder:
                break
            folder = posixpath.dirname(folder)
        for prefix, spec in self._above:
            verdict = spec.check_file(f"{prefix}{path}{ending}").include
            if verdict is not None:
                return verdict
        return False


def _tracked(root: Path) -> frozenset[str]:
    """What of a folder git tracks though `.gitignore` names it, and the folders above; nothing where git can't tell."""
    # (A repository's own settings may name a program for git to start.)
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--ignored", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=root, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return frozenset()
    found = set(filter(None, os.fsdecode(done.stdout).split("\0")))
    for path in [*found]:
        found.update(str(above) for above in PurePosixPath(path).parents)
    return frozenset(found)


def _load(folder: Path) -> GitIgnoreSpec | None:
    path = folder / ".gitignore"
    if not os.path.isfile(path):
        return None
    return GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
