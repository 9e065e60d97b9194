"""A notebook as it was read: its script, and what there is to know about the script's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.project.text_files import TextFile


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
