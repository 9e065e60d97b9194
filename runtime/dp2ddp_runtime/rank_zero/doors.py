"""The functions through which Python changes the disk, or asks about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Final

import torch

from . import handles


@dataclass(frozen=True)
class Door:
    """A function that touches the disk.

    Args:
        owner, name: where it is.
        paths: where its arguments have the paths that say whose the call is: places and names.
        asks: whether it changes nothing.
        removes: whether others may still read what it changes.
        moves: whether it takes away what its first path names.
        starts: whether it starts a program.
        told, made: what is told of an answer, and how it is made again.
        absent: the answer on a rank without hands that nobody tells anything.
        instead: what is called in its place for all ranks.
    """

    owner: Any
    name: str
    paths: tuple[tuple[int, str], ...] = ()
    asks: bool = False
    removes: bool = False
    moves: bool = False
    starts: bool = False
    told: Callable[[Any], Any] = lambda made: made
    made: Callable[[Any], Any] = lambda told: told
    absent: Callable[[], Any] = lambda: None
    instead: Callable[..., Any] | None = None

    def paths_in(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The paths of a call; None for one that it leaves to the function."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self.paths]

    @property
    def full_name(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


def _stat(told: Any) -> os.stat_result:
    return os.stat_result(*told)


def _ran(done: Any) -> Any:
    return [done.args, done.returncode, done.stdout, done.stderr]


_STATS = ("stat", "lstat")
_PATH, _TO, _BOTH = ((0, "path"),), ((1, "dst"),), ((0, "src"), (1, "dst"))

DOORS: Final = [
    *(Door(os, name, _PATH, asks=True, told=lambda made: made.__reduce__()[1], made=_stat) for name in _STATS),
    *(Door(os, name, _PATH, asks=True) for name in ("access", "listdir", "readlink")),
    Door(os, "scandir", _PATH, asks=True, told=lambda made: made.told, made=handles.Entries, instead=handles.scandir),
    Door(os, "get_terminal_size", asks=True, told=tuple, made=os.terminal_size),
    *(Door(os, name, _PATH) for name in ("mkdir", "chmod", "utime")),
    *(Door(os, name, _PATH) for name in ("mknod", "mkfifo", "chown", "lchown") if hasattr(os, name)),  # not on Windows
    Door(os, "makedirs", ((0, "name"),)),
    *(Door(os, name, _TO) for name in ("symlink", "link")),
    *(Door(os, name, _PATH, removes=True) for name in ("remove", "unlink", "rmdir", "truncate")),
    Door(os, "removedirs", ((0, "name"),), removes=True),
    *(Door(os, name, _BOTH, removes=True, moves=True) for name in ("rename", "replace")),
    Door(os, "renames", ((0, "old"), (1, "new")), removes=True, moves=True),
    Door(shutil, "rmtree", _PATH, removes=True),
    Door(shutil, "make_archive", ((0, "base_name"),), removes=True),
    *(Door(shutil, name, _TO, removes=True) for name in ("copy", "copy2", "copyfile", "copytree")),
    Door(shutil, "move", _BOTH, removes=True, moves=True),
    Door(shutil, "unpack_archive", ((1, "extract_dir"),), removes=True),
    *(
        Door(kind, name, ((place, "path"),), removes=True)
        for kind in (zipfile.ZipFile, tarfile.TarFile)
        for place, name in ((1, "extractall"), (2, "extract"))
    ),
    Door(urllib.request, "urlretrieve", ((1, "filename"),), told=lambda made: [made[0], None], made=tuple),
    Door(torch.jit._script.RecursiveScriptModule, "save", ((1, "f"),), removes=True),
    Door(torch, "save", ((1, "f"),), removes=True),
    Door(os, "system", starts=True, removes=True),
    Door(subprocess, "call", starts=True, removes=True),
    Door(subprocess, "run", starts=True, removes=True, told=_ran, made=lambda told: subprocess.CompletedProcess(*told)),
]
