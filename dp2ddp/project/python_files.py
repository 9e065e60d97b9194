"""The Python files of a project, read when they are asked for."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.project import text_files
from dp2ddp.project.text_files import TextFile


class PythonFiles(Mapping[str, str]):
    """Texts by posix paths relative to the project's root.

    A copy of the runtime in the project is none of its own files, and never among these.

    Args:
        root: the project's folder.
        paths: its Python files as far as they are known beforehand; iterating yields these.
        late: tells of another path whether the file there, if there is one, belongs to the project as well.
    """

    def __init__(self, root: Path, paths: Iterable[str] = (), late: Callable[[str], bool] = lambda path: False) -> None:
        self.root = root
        self._known = dict.fromkeys(path for path in paths if not _is_runtime(path))
        self._late = late
        self._found: dict[str, bool] = {}
        self._data: dict[str, bytes] = {}
        self._sources: dict[str, TextFile] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, path: object) -> bool:
        if path in self._known:
            return True
        if not isinstance(path, str):
            return False
        if path not in self._found:  # imports are looked for in the same places over and over
            self._found[path] = not _is_runtime(path) and self._late(path) and (self.root / path).is_file()
        return self._found[path]

    def __getitem__(self, path: str) -> str:
        return self.source(path).text

    def inside(self, folder: str) -> list[str]:
        """The files of the project directly in a folder."""
        paths = (posixpath.join(folder, path.name) for path in sorted((self.root / folder).glob("*.py")))
        return [path for path in paths if path in self]

    def folders(self, folder: str) -> list[str]:
        """The folders directly in a folder, hidden ones and the runtime left out."""
        try:
            with os.scandir(self.root / folder) as entries:
                names = sorted(each.name for each in entries if not each.name.startswith(".") and each.is_dir())
        except OSError:  # what may not be read has nothing to import either
            return []
        return [posixpath.join(folder, name) for name in names if name != RUNTIME_PACKAGE]

    def is_known(self, path: str) -> bool:
        """Whether the file was known beforehand."""
        return path in self._known

    def data(self, path: str) -> bytes:
        """The file's bytes.

        Raises:
            BadInput: it can't be read.
        """
        if path not in self._data:
            self._data[path] = text_files.read_bytes(self.root / path, path)
        return self._data[path]

    def source(self, path: str) -> TextFile:
        """The file, decoded.

        Raises:
            BadInput: it can't be read, or is not in the encoding it says.
        """
        if path not in self._sources:
            self._sources[path] = text_files.decode(self.data(path), path, self.root / path)
        return self._sources[path]

    def give(self, path: str, source: TextFile) -> None:
        """Enters a file that was read already."""
        self._known[path] = None
        self._sources[path] = source
        self._data[path] = source.encode(source.text)


def _is_runtime(path: str) -> bool:
    return RUNTIME_PACKAGE in path.split("/")
