"""Scratch working directories: a script finds its files there, and writes none of the user's.

A scratch directory holds a symbolic link for each file of the original one, in real folders. What isn't a link after a
run is what the script wrote: a link that is about to be written through becomes a file first.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

COPY = ".dp2ddp"  # behind the name of a copy that isn't complete
MOST_FILES = 2000  # a folder with more is linked as a whole
_LEFT_OUT = {".git", ".hg", "__pycache__", ".venv", "venv", "node_modules"}
_LEFT_OUT |= {".mypy_cache", ".pytest_cache", ".ruff_cache"}
_WRITING = os.O_WRONLY | os.O_RDWR


def fill(work: Path, source: Path, script: Path | None = None) -> None:
    """Fill `work` with links to what is in `source`, folder by folder.

    A folder that holds more than `MOST_FILES` files (a data set) becomes a link itself: a script that writes into it
    writes into the user's. The folders down to `script` (an absolute path, resolved) never do.
    """
    work.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        if entry.name in _LEFT_OUT or entry.absolute() in (work.absolute(), *work.absolute().parents):
            continue
        target = work / entry.name
        around = script is not None and entry.is_dir() and entry.resolve() in script.parents
        if around or (entry.is_dir() and not entry.is_symlink() and _is_small(entry)):
            fill(target, entry, script)
        elif entry.exists():
            target.symlink_to(entry.resolve())


def link_beside(folder: Path, source: Path) -> None:
    """Link in `folder` what lies beside `source` and holds Python, which a script may import by `..`.

    Nothing else: what a script writes there must not come to the user's files.
    """
    above = source.parent
    if above == above.parent:
        return
    for entry in above.iterdir() if os.access(above, os.R_OK) else ():
        is_free = entry != source and entry.name not in _LEFT_OUT and not (folder / entry.name).exists()
        if is_free and _holds_python(entry):
            (folder / entry.name).symlink_to(entry.resolve())


def _holds_python(entry: Path) -> bool:
    """Whether it is a module, or one or a package is among the first that lie in it."""
    if not entry.is_dir() or not os.access(entry, os.R_OK | os.X_OK):
        return entry.suffix == ".py"
    return any(each.suffix == ".py" or (each / "__init__.py").is_file() for each in islice(entry.iterdir(), MOST_FILES))


def put(work: Path, name: Path, source: Path) -> None:
    """Let `name` in the scratch directory `work` be the file `source`.

    Folders on the way that are links become real ones.
    """
    place = work / name
    for folder in reversed(place.parents):
        if work in folder.parents and folder.is_symlink():
            target = folder.resolve()
            folder.unlink()
            folder.mkdir()
            for entry in target.iterdir():
                (folder / entry.name).symlink_to(entry)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(source)


def is_output(path: Path) -> bool:
    """Whether the script wrote this file, rather than finding it there."""
    return not path.is_symlink() and "__pycache__" not in path.parts


def protect(folder: Path, wrote: Callable[[Any], object] = lambda path: None) -> None:
    """From now on, a link under `folder` that this process opens for writing becomes a file of its own first.

    Sees every `open` of Python's, `torch.save` and `ddp.save`; not what other libraries open in C. `wrote` is called
    with each path that is opened to write.
    """
    root = str(folder.resolve())

    def begin(path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            link = os.path.abspath(os.fsdecode(path))
            inside = os.path.islink(link) and os.path.realpath(os.path.dirname(link)).startswith(root)
            if inside and os.path.isfile(link):
                shutil.copyfile(os.path.realpath(link), link + COPY)
                os.replace(link + COPY, link)
            wrote(os.fsdecode(path))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            is_write = {*"wax+"} & {*mode} if isinstance(mode, str) else isinstance(flags, int) and flags & _WRITING
            if is_write:
                begin(path)

    def detaching(save: Callable[..., None]) -> Callable[..., None]:
        def detached(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            begin(f)
            save(obj, f, *args, **kwargs)

        return detached

    import torch
    from dp2ddp_runtime import checkpoint

    sys.addaudithook(hook)
    torch.save = detaching(torch.save)
    # It follows a link before torch sees a name. Within `ddp.save`, which looks from which line it is called.
    checkpoint._save_whole = detaching(checkpoint._save_whole)


def _is_small(folder: Path) -> bool:
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        count += len(files)
        if count > MOST_FILES:
            return False
    return True
