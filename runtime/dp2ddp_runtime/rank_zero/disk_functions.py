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

from . import entries


@dataclass(frozen=True)
class Door:
    """A function that touches the disk.

    Args:
        owner, name: where it is.
        paths: where its arguments have the paths that it asks about or changes, which say whose the call is: places
            and names.
        asks: whether it changes nothing.
        removes: whether others may still read what it changes.
        starts: whether it starts a program.
        encode, decode: what is told of an answer, and how it is made again.
    """

    owner: Any
    name: str
    paths: tuple[tuple[int, str], ...] = ()
    asks: bool = False
    removes: bool = False
    starts: bool = False
    encode: Callable[[Any], Any] = lambda made: made
    decode: Callable[[Any], Any] = lambda told: told

    def paths_in(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The paths of a call; None for one that it leaves to the function."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self.paths]

    @property
    def full_name(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


def _as_stat(told: Any) -> os.stat_result:
    return os.stat_result(*told)


def _ran(done: Any) -> Any:
    return [done.args, done.returncode, done.stdout, done.stderr]


_PATH, _TO, _BOTH = ((0, "path"),), ((1, "dst"),), ((0, "src"), (1, "dst"))

DOORS: Final = [
    *(
        Door(os, name, _PATH, asks=True, encode=lambda made: made.__reduce__()[1], decode=_as_stat)
        for name in ("stat", "lstat")
    ),
    *(Door(os, name, _PATH, asks=True) for name in ("access", "listdir", "readlink")),
    Door(os, "scandir", _PATH, asks=True, encode=entries.listed, decode=entries.Entries),
    Door(os, "get_terminal_size", asks=True, encode=tuple, decode=os.terminal_size),
    *(Door(os, name, _PATH) for name in ("mkdir", "chmod", "utime")),
    Door(os, "makedirs", ((0, "name"),)),
    *(Door(os, name, _TO) for name in ("symlink", "link")),
    *(Door(os, name, _PATH, removes=True) for name in ("remove", "unlink", "rmdir", "truncate")),
    Door(os, "removedirs", ((0, "name"),), removes=True),
    *(Door(os, name, _BOTH, removes=True) for name in ("rename", "replace")),
    Door(os, "renames", ((0, "old"), (1, "new")), removes=True),
    Door(shutil, "rmtree", _PATH, removes=True),
    Door(shutil, "make_archive", ((0, "base_name"),), removes=True),
    *(Door(shutil, name, _TO, removes=True) for name in ("copy", "copy2", "copyfile", "copytree")),
    Door(shutil, "move", _BOTH, removes=True),
    Door(shutil, "unpack_archive", ((1, "extract_dir"),), removes=True),
    *(
        Door(kind, name, ((place, "path"),), removes=True)
        for kind in (zipfile.ZipFile, tarfile.TarFile)
        for place, name in ((1, "extractall"), (2, "extract"))
    ),
    Door(urllib.request, "urlretrieve", ((1, "filename"),), encode=lambda made: [made[0], None], decode=tuple),
    Door(torch.jit._script.RecursiveScriptModule, "save", ((1, "f"),), removes=True, encode=lambda made: None),
    Door(os, "system", starts=True),
    Door(subprocess, "call", starts=True),
    Door(subprocess, "run", starts=True, encode=_ran, decode=lambda told: subprocess.CompletedProcess(*told)),
]
