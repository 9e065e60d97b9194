"""What `os.scandir` gives, of a folder that rank 0 has listed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


class Entries:
    """What `os.scandir` gives, of a list that rank 0 has made."""

    def __init__(self, told: Any) -> None:
        self._left = iter([Entry(*each) for each in told])

    def __iter__(self) -> Iterator[Any]:
        return self._left

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = iter(())


class Entry:
    """An `os.DirEntry`."""

    def __init__(self, name: Any, path: Any, is_dir: Any, is_file: Any, is_link: bool, number: int) -> None:
        self.name, self.path = name, path
        self._is_dir, self._is_file, self._is_link, self._number = is_dir, is_file, is_link, number

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return bool(self._is_dir[follow_symlinks])

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return bool(self._is_file[follow_symlinks])

    def is_symlink(self) -> bool:
        return self._is_link

    def inode(self) -> int:
        return self._number

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


def listed(found: Any) -> Any:
    """What is told of an `os.scandir`."""
    with found:
        return [
            (
                each.name,
                each.path,
                [each.is_dir(follow_symlinks=follow) for follow in (False, True)],
                [each.is_file(follow_symlinks=follow) for follow in (False, True)],
                each.is_symlink(),
                each.inode(),
            )
            for each in found
        ]
