"""Where pages are written: over an older page, never over anything else."""

from __future__ import annotations

from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.project import text_files

#: What every page has in its first lines.
_MARK = b'<meta name="generator" content="dp2ddp '
_HEAD = 1000  # bytes in which that stands


def check_target(path: str, *, force: bool) -> None:
    """Checks that a page may be written to `path`, before any work is done.

    Args:
        force: replace whatever is there.

    Raises:
        BadInput: a directory, something that is no page of dp2ddp (without `force`), or not writable.
    """
    target = Path(path)
    if path == text_files.STANDARD:
        raise BadInput("--html", what="a page can't go to standard output", todo="name a file, such as report.html")
    if not path or target.is_dir():
        raise BadInput(path or "--html", what="a directory" if path else "an empty name", todo="name the file to write")
    text_files.check_writable(target)
    if target.is_file() and not force and not _is_page(target):
        todo = "name another file, or use --force to overwrite it"
        raise BadInput(path, what="exists already, and is no page of dp2ddp", todo=todo)


def write(path: str, page: str) -> None:
    """Writes a page, all of it or nothing.

    Raises:
        BadInput: it can't be written.
    """
    text_files.write(Path(path), page.encode())


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return not head or _MARK in head
