"""Reading a script so that every byte that isn't converted stays; and where its conversion may go.

Encodings as PEP 263 has them.
"""

from __future__ import annotations

import io
import os
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

from dp2ddp.errors import BadInput

#: No script is longer; what is (a device, a data set with a wrong name) would fill the memory.
LONGEST = 64 << 20
#: The name that stands for standard input and standard output.
STANDARD = "-"


def read_bytes(path: Path, name: str) -> bytes:
    """The bytes of the file, pipe or device at `path`.

    Args:
        name: how messages call it.

    Raises:
        BadInput: it is missing, unreadable, a directory, or has more than `LONGEST` bytes.
    """
    try:
        with path.open("rb") as file:
            return _not_too_long(file.read(LONGEST + 1), name)
    except FileNotFoundError:
        raise BadInput(name, what="no such file") from None
    except IsADirectoryError:
        raise BadInput(name, what="a directory", todo="give one script") from None
    except OSError as error:
        raise BadInput(name, what=f"can't be read ({error.strerror})") from None


def _not_too_long(data: bytes, name: str) -> bytes:
    if len(data) > LONGEST:
        raise BadInput(name, what=f"more than {LONGEST >> 20} MiB, too much for a script")
    return data


@dataclass(frozen=True)
class TextFile:
    """A script as read.

    Attributes:
        name: how messages call it; ``<stdin>`` for standard input.
        path: where it lies; None for standard input.
        text: its source, newlines as they are, without byte order mark.
        encoding: by which it was decoded; ``utf-8-sig`` for UTF-8 behind a byte order mark.
    """

    name: str
    path: Path | None
    text: str
    encoding: str = "utf-8"

    def encode(self, text: str) -> bytes:
        """`text` as bytes, in the way that this file has its own."""
        return text.encode(self.encoding)


def read(name: str) -> TextFile:
    """Reads the script at the path `name`, or standard input for ``-``.

    Raises:
        BadInput: it is missing, unreadable, a directory, a notebook, binary, or not in the encoding it says.
    """
    if name == STANDARD:
        return decode(_standard_input(), "<stdin>", None)
    return decode(read_bytes(Path(name), name), name, Path(name))


def _standard_input() -> bytes:
    name = "<stdin>"
    if sys.stdin is None:
        raise BadInput(name, what="can't be read, as it is closed")
    try:
        return _not_too_long(sys.stdin.buffer.read(LONGEST + 1), name)
    except OSError as error:
        raise BadInput(name, what=f"can't be read ({error.strerror})") from None


def decode(data: bytes, name: str, path: Path | None) -> TextFile:
    """The script whose bytes are `data`.

    Raises:
        BadInput: a notebook, binary, or not in the encoding it says.
    """
    if b"\0" in data:
        raise BadInput(name, what="a binary file, not a Python script", todo="if it is UTF-16, save it as UTF-8")
    try:
        # (What is no UTF-8 is left to `decode`, which knows where it is.)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data.decode("utf-8", "replace").encode()).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError) as error:
        raise BadInput(name, what=f"{error}", todo="save it as UTF-8, and say no other encoding") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        todo = "save it as UTF-8, or name its encoding in its first line: # -*- coding: latin-1 -*-"
        raise BadInput(
            name, line=line, what=f"the byte 0x{data[error.start]:02x} is not {encoding}", todo=todo
        ) from None
    if text.encode(encoding) != data:
        raise BadInput(name, what=f"the encoding {encoding} can't be written back unchanged", todo="save it as UTF-8")
    if text.lstrip().startswith("{") and '"nbformat"' in text:
        todo = "give it by a name that ends in .ipynb"
        raise BadInput(name, what="a notebook, not a script", todo=todo)
    return TextFile(name, path, text, encoding)


def check_new(path: Path, source: Path | None, *, force: bool) -> None:
    """Checks that the conversion of the file `source` may take the place of what is at `path`.

    Raises:
        BadInput: a directory, the input itself, or there already (without `force`).
    """
    if path.is_dir():
        raise BadInput(str(path), what="a directory", todo="name the file to write")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise BadInput(str(path), what="the output is the input", todo="use --in-place to convert a file in its place")
    if path.exists() and not is_special(path) and not force:
        raise BadInput(str(path), what="exists already", todo="use --force to overwrite it")


def check_writable(path: Path) -> None:
    """Checks that `path` can be written, as far as can be told without writing.

    Raises:
        BadInput: its folder is missing, or it or its folder is not writable.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise BadInput(str(path), what=f"no such folder: {target.parent}", todo="make it first")
    writable = os.access(target, os.W_OK) if target.exists() else True
    if not writable or not (is_special(target) or os.access(target.parent, os.W_OK)):
        raise BadInput(str(path), what="can't be written (Permission denied)")


def is_special(path: Path) -> bool:
    """Whether a device, a pipe or the like is there."""
    return path.exists() and not path.is_file() and not path.is_dir()
