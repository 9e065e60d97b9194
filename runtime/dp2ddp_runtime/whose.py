"""Whose a file is: the script's, of which rank 0 is in charge, or a rank's own."""

from __future__ import annotations

import functools
import itertools
import os
import sysconfig
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import get_worker_info

from . import place
from .acting import mode
from .disk import chain, disk
from .world import world

_SYSTEM = ("/dev/", "/proc/", "/sys/", sysconfig.get_path("stdlib") + os.sep)
#: Variables by which users say where libraries have their caches, and these caches' names where none says it.
_CACHES = (
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
    *("HF_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"),
)
_IN_CACHE = ("torch", "huggingface", "matplotlib", "fontconfig")
_AT_HOME = (".config/matplotlib", ".triton", ".nv")

_turns: dict[str, Iterator[int]] = {}
#: Files and folders that `tempfile` has named.
temporary: set[str] = set()


def mode_of() -> str:
    """How this code deals with files.

    Empty where all ranks do the same: rank 0 alone changes them. "own": really done, and nobody is told. "mute": what
    changes a file changes nothing, and nobody is told; so it is in processes that another rank than 0 has forked.
    """
    how = "own" if mode.get() == "sample" else mode.get()  # ranks may write at once what samples write
    if not disk.is_used:
        return "own"
    if how or os.getpid() == world.pid:
        return how
    return "own" if world.rank == 0 or get_worker_info() is not None else "mute"


def turn(what: str) -> str:
    """A key for what is told at the script's line this time; by line, as ranks may differ in what they pass."""
    key = f"{what} {place.line()}"
    return f"{key} {next(_turns.setdefault(key, itertools.count(1)))}"


def ours(path: Any, dir_fd: int | None = None) -> str | None:
    """The whole of a path that is the script's, of which rank 0 is in charge; None for what is a rank's own."""
    if isinstance(path, int) or not isinstance(path, (str, bytes, os.PathLike)) or mode_of() == "own":
        return None
    name = os.fsdecode(path)
    if dir_fd is not None:
        try:
            name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
        except OSError:
            return None
    whole = resolved(os.path.abspath(name))
    home = os.environ.get("HOME", "")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    # A cache's folder itself counts: compilers make it while they hold a lock for which another rank waits.
    is_own = (
        f"{whole}{os.sep}".startswith((*_SYSTEM, *_caches(home, cache, *map(os.environ.get, _CACHES))))
        or whole == cache
    )
    return None if is_own or not temporary.isdisjoint(chain(whole)) else whole


def resolved(path: str) -> str:
    """A path whose folder has one name, whatever links lead there; its last part may be a link itself."""
    folder, name = os.path.split(path)
    whole, parts, most = os.sep, deque(folder.split(os.sep)), 40  # links, as Linux has it
    while parts:
        here = os.path.join(whole, parts.popleft())
        target = disk.link(here) if most else None
        if target is None:
            whole = here
        else:  # from the top: what it leads to may go by links as well
            most -= 1
            parts.extendleft(reversed(os.path.normpath(os.path.join(whole, target)).split(os.sep)))
            whole = os.sep
    return os.path.join(whole, name)


@functools.lru_cache(maxsize=1)
def _caches(home: str, cache: str, *named: str | None) -> tuple[str, ...]:
    """How paths begin in which libraries keep what they can make again ("~/.cache/torch_extensions", too)."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    compiled = os.path.join(tempfile.gettempdir(), "torchinductor_")
    at_home = [*(os.path.join(cache, each) for each in _IN_CACHE), *(os.path.join(home, each) for each in _AT_HOME)]
    return (*(os.path.abspath(each) + os.sep for each in (*filter(None, named), *installed)), *at_home, compiled)


def is_by_tempfile(frame: Any) -> bool:
    """Whether this is a line of `tempfile`."""
    return bool(frame.f_code.co_filename == tempfile.__file__)


def take_as_own(path: Any) -> None:
    """A name that `tempfile` makes. Where rank 0 makes it in a folder of the script's, others don't see it."""
    whole = ours(path)
    if whole is not None:
        if not world.rank and not mode_of():
            disk.begins(whole, destroys=False)
        temporary.add(whole)
