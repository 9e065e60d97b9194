"""Whose a call on the disk is: the script's, which rank 0 does for all, or a rank's own."""

from __future__ import annotations

import functools
import linecache
import logging
import os
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from ..base.location import Location, here
from ..ranks import file_sync

_STDLIB = os.path.dirname(os.__file__)
_TORCH = os.path.dirname(torch.__file__)
_RUNTIME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: Python's own code that opens files for a process itself: sources that are imported or quoted, temporary files, what
#: `quiet` has silenced.
_FOR_ITSELF = frozenset(
    [linecache.__file__, tempfile.__file__, *(os.path.dirname(each) for each in (logging.__file__,))]
    + [os.path.join(_STDLIB, name) for name in ("importlib", "multiprocessing", "ctypes", "encodings")]
    + [os.path.join(_STDLIB, f"{name}.py") for name in ("inspect", "tokenize", "traceback", "warnings", "zipimport")]
    + [os.path.join(_STDLIB, f"{name}.py") for name in ("pkgutil", "uuid", "platform", "pdb", "bdb", "locale", "_pyio")]
)
#: Code that opens files for who calls it, of torch and of this runtime.
_FOR_CALLER = (
    *(os.path.join(_TORCH, *name.split("/")) for name in ("serialization.py", "hub.py", "utils/tensorboard", "onnx")),
    *(os.path.join(_RUNTIME, "rank_zero", name) for name in ("checkpoint.py", "hands.py", "temporary.py")),
)
#: Folders of code whose files are each rank's own, beside torch's (compilers' caches) and this runtime's.
aside: list[str] = [_RUNTIME, _TORCH]

_SYSTEM = ("/dev/", "/proc/", "/sys/", sysconfig.get_path("stdlib") + os.sep)
_CACHES = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "MPLCONFIGDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
own_temporary: set[str] = set()  # temporary files and folders of this rank's own


class Call(NamedTuple):
    """A call on the disk that is the script's: what is called where, and a checksum of the path that it is about.

    If it isn't shared, not all ranks come to it, or not to the same: rank 0 alone has hands here, and nobody waits.
    """

    shared: bool
    key: str = ""
    about: int = 0
    what: str = ""


def call_of(name: str, paths: Iterable[Any], depth: int = 2) -> Call | None:
    """The script's call of `name`, with these paths, `depth` frames up; None for one that is this rank's own."""
    if file_sync.writer() in ("main", "own"):
        return None
    found = [os.fspath(path) for path in paths if path is not None]
    if found and all(map(belongs_to_this_rank, found)):
        return None
    frame = sys._getframe(depth)
    who = _caller(frame)
    if who == "itself":
        if name in ("os.mkdir", "os.open") and frame.f_code.co_filename == tempfile.__file__:
            own_temporary.add(os.path.abspath(os.fsdecode(found[0])))
        return None
    if file_sync.store() is None and get_worker_info() is not None:  # a loader's worker
        return None
    if who == "nobody" or file_sync.shared() is None:
        return Call(False)
    return shared_call(name, found, here(frame))


def shared_call(name: str, paths: Sequence[Any], place: Location) -> Call:
    """A call to which all ranks come, and to the same."""
    about = zlib.crc32(os.fsencode(paths[0])) if paths else 0
    return Call(True, f"{name} {place.line} {place.stack}", about, f"{name} in {place.line}")


def belongs_to_this_rank(path: str | bytes) -> bool:
    """Whether a path is the rank's own: temporary, a cache, the system's."""
    whole = os.path.abspath(os.fsdecode(path))
    if whole.startswith((*_SYSTEM, *_caches(os.environ.get("HOME", "")))):
        return True
    while own_temporary and len(whole) > 1:
        if whole in own_temporary:
            return True
        whole = os.path.dirname(whole)
    return False


def is_aside(filename: str) -> bool:
    """Whether a file's code opens files for the process itself, or for its caller."""
    return _kind_of_file(filename) in ("itself", "fetch") or filename.startswith(_FOR_CALLER)


@functools.lru_cache(maxsize=1)
def _caches(home: str) -> tuple[str, ...]:
    """The folders in which libraries keep what they can make again."""
    named = [os.environ[name] for name in _CACHES if os.environ.get(name)]
    at_home = [os.path.join(home, name) for name in (".cache", ".triton", ".nv", os.path.join(".config", "matplotlib"))]
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    compiled = os.path.join(tempfile.gettempdir(), "torchinductor_")
    return (*(os.path.abspath(each) + os.sep for each in (*named, *at_home, *installed)), compiled)


def _caller(frame: FrameType | None) -> str:
    """Whose a call is: "script", "itself" (the rank's own), or "nobody" (a thread that no line of the script runs)."""
    who = "nobody"
    while frame is not None:
        code = frame.f_code
        kind = _kind_of_file(code.co_filename)
        if kind == "fetch":
            return "itself"  # a sample's, which is loaded by the rank that has it
        if who == "nobody":
            if kind == "itself" or code.co_name in ("realpath", "_joinrealpath"):
                return "itself"
            who = "script" if kind == "script" else who
        frame = frame.f_back
    return who


def is_of_sample(frame: FrameType | None) -> bool:
    """Whether a line is run to load a sample, which other ranks may load at the same time."""
    while frame is not None and frame.f_code.co_filename != fetch.__file__:
        frame = frame.f_back
    return frame is not None


@functools.cache
def _kind_of_file(filename: str) -> str:
    """What the code of a file is: "script" for the user's and packages', "python" for what serves its caller."""
    if filename == fetch.__file__:
        return "fetch"
    if filename.startswith("<frozen importlib"):
        return "itself"
    if filename.startswith("<") or filename.startswith(_FOR_CALLER):
        return "python"
    if filename in _FOR_ITSELF or os.path.dirname(filename) in _FOR_ITSELF or _is_below(filename, aside):
        return "itself"
    is_installed = f"{os.sep}site-packages{os.sep}" in filename
    return "python" if _is_below(filename, [_STDLIB]) and not is_installed else "script"


def _is_below(filename: str, folders: Iterable[str]) -> bool:
    return any(filename.startswith(folder + os.sep) for folder in folders)
