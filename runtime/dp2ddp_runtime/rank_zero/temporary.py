"""Temporary files: a rank's own, but for those that stay in a folder that the script chose.

- `tempfile.NamedTemporaryFile()` and the others give each rank its own file.
- With `dir=` and `delete=False` it is rank 0's, under rank 0's name, as any other file in that folder is.
- What a program of rank 0 wrote into rank 0's own files is written into the other ranks' as well.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Callable

from ..ranks import file_sync
from . import callsites

#: A file that a program wrote: the place of its path in a command, the name below that if it is a folder, the content.
Written = tuple[int, str, bytes]

_Wrapper: Any = tempfile._TemporaryFileWrapper
_END_OF_NAME = "[^\0\\s\"';|&<>,]*"
_CLOCK = 20_000_000  # nanoseconds by which a file system's clock may be late


def named(real: Any, make: Callable[..., str | None], opened: Callable[..., IO[Any]]) -> Any:
    """What stands in the place of `tempfile.NamedTemporaryFile`, by an `open` and a `mkstemp` of rank 0's."""

    signature = inspect.signature(real)

    @functools.wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        stays = given["dir"] is not None and not given["delete"]
        name = make(given["suffix"], given["prefix"], given["dir"]) if stays else None
        if name is None:
            return real(*args, **kwargs)
        ways = [given[each] for each in ("mode", "buffering", "encoding", "errors", "newline")]
        return _Wrapper(opened(name, *ways), name, delete=False)

    return function


def name_of_own(real: Any) -> Any:
    """What stands in the place of `tempfile.mktemp`: what gets the name will be this rank's own, too."""

    @functools.wraps(real)
    def function(suffix: str = "", prefix: str = tempfile.template, dir: Any = None) -> Any:
        name = real(suffix, prefix, dir)
        if dir is None:
            callsites.own_temporary.add(os.path.abspath(name))
        return name

    return function


def in_command(command: Any, handles: Iterable[Any]) -> list[str]:
    """The temporary files and folders of this rank's own that a command and its output name, in that order."""
    own = "|".join(map(re.escape, callsites.own_temporary))
    words = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
    names = [getattr(handle, "name", "") for handle in handles]
    text = "\0".join(os.fsdecode(word) for word in [*words, *names] if isinstance(word, (str, bytes, os.PathLike)))
    return re.findall(f"(?:{own}){_END_OF_NAME}", text) if own else []


def written(paths: list[str], since: int) -> list[Written]:
    """What was written there since a time, in nanoseconds."""
    files = [(place, inner, Path(path, inner)) for place, path in enumerate(paths) for inner in _within(path)]
    late = [each for each in files if each[2].stat().st_mtime_ns > since - _CLOCK]
    return [(place, inner, file.read_bytes()) for place, inner, file in late]


def write(paths: list[str], contents: Iterable[Written]) -> None:
    """Write what another rank's files have got into this one's."""
    with file_sync.not_together("own"):
        for place, inner, content in contents:
            path = Path(paths[place], inner)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _within(path: str) -> Iterator[str]:
    """The files that a path is, or that are below it, by their names there."""
    if os.path.isfile(path):
        yield ""
    for at, _, names in os.walk(path):
        yield from (os.path.relpath(os.path.join(at, name), path) for name in names)
