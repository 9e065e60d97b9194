"""Where in a notebook a line of its script stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dp2ddp.errors import BadInput


class Place(NamedTuple):
    """A line of a cell; both count from 1, cells of text included, as ruff counts them."""

    cell: int
    line: int

    def __str__(self) -> str:
        """``cell 3:2``."""
        return f"cell {self.cell}:{self.line}"


@dataclass(frozen=True)
class Places:
    """The place of each line of a script that was made from a notebook."""

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
