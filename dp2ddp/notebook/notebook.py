"""A notebook as its file has it, as it was read: its script, and what there is to know about the script's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.project.text_files import TextFile

SUFFIX = ".ipynb"


class Place(NamedTuple):
    """A line of a cell; both count from 1, cells of text included, as ruff counts them."""

    cell: int
    line: int

    def __str__(self) -> str:
        """``cell 3:2``."""
        return f"cell {self.cell}:{self.line}"


@dataclass(frozen=True)
class LineMap:
    """Where each line of a script that was made from a notebook stands there."""

    lines: Sequence[Place]

    def of(self, line: int) -> Place:
        """The place of a line, from 1; lines behind the end are the last one's."""
        return self.lines[min(line, len(self.lines)) - 1]

    def renamed(self, error: BadInput, name: str) -> BadInput:
        """The error about a line of the script, as one about the notebook `name`."""
        if error.line is None:
            return error.renamed(name)
        place = self.of(error.line)
        return BadInput(
            f"{name}:cell {place.cell}", what=error.what, todo=error.todo, line=place.line, column=error.column
        )


@dataclass(frozen=True)
class Remark:
    """What a person has to know about a line, from 1, of a cell or of a script.

    Attributes:
        kept: the line stays where the notebook stays a notebook, which answers the remark.
    """

    line: int
    what: str
    todo: str
    kept: bool = False


@dataclass(frozen=True)
class Notebook(TextFile):
    """A notebook, as a script.

    Attributes:
        text: the script.
        places: where its lines stand in the notebook.
        remarks: what a person has to know about lines of the script.
        document: the notebook, as nbformat has it.
        kept: of the cells whose code is in the script, by index, the lines that the notebook goes on running itself.
    """

    places: LineMap = field(default_factory=lambda: LineMap([]))
    remarks: Sequence[Remark] = ()
    document: Any = None
    kept: Mapping[int, Sequence[str]] = field(default_factory=dict)


def is_notebook(name: str) -> bool:
    """Whether a file's name is that of a notebook."""
    return name.endswith(SUFFIX)


def read_document(path: Path, name: str) -> Any:
    """The notebook at `path`, as nbformat has it, in format 4.

    Raises:
        BadInput: it can't be read, is no valid notebook with Python in it, or nbformat is missing.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise BadInput(name, what="no such file") from None
    except OSError as error:
        raise BadInput(name, what=f"can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadInput(name, what="no notebook: not UTF-8") from None
    document = _parsed(text, name)
    language = _language(document["metadata"])
    if language not in ("python", "ipython", "python3", ""):
        raise BadInput(name, what=f"a notebook in {language}, not in Python")
    if not any(cell["cell_type"] == "code" and cell["source"].strip() for cell in document["cells"]):
        raise BadInput(name, what="a notebook without code")
    return document


def write_document(document: Any) -> bytes:
    """A notebook's bytes, as Jupyter writes them."""
    import nbformat

    return f"{nbformat.writes(document).rstrip()}\n".encode()


def _parsed(text: str, name: str) -> Any:
    import logging
    import warnings

    try:
        import nbformat  # slow, and only wanted for notebooks
    except ModuleNotFoundError:
        raise BadInput(name, what="notebooks need nbformat", todo="pip install nbformat") from None

    # What is missing and can be made up (ids of cells), nbformat tells the log and the user: not this command's affair.
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    broken = (ValueError, KeyError, AttributeError, TypeError, RecursionError, nbformat.ValidationError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = nbformat.reads(text, as_version=4)
            nbformat.validate(document)
    except broken as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(name, what=f"no valid notebook: {reason}") from None
    return document


def _language(metadata: Any) -> str:
    """The language that it says it is in; empty if it doesn't say."""
    info = metadata.get("language_info", {}).get("name")
    return str(info or metadata.get("kernelspec", {}).get("language") or "").lower()
