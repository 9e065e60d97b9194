"""A notebook as it was read: its script, and what there is to know about the script's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dp2ddp.notebook.places import Places
from dp2ddp.project.text_files import TextFile


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

    places: Places = field(default_factory=lambda: Places([]))
    remarks: Sequence[Remark] = ()
    document: Any = None
    kept: Mapping[int, Sequence[str]] = field(default_factory=dict)
