"""What a page is made of: all that a conversion knows, before anything of it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dp2ddp.convert.overview import Project, Scripts
from dp2ddp.convert.programs import Outcome
from dp2ddp.convert.request import Request
from dp2ddp.convert.shown_names import Names


@dataclass(frozen=True)
class Material:
    """What a page is made of.

    Attributes:
        request: what was asked for.
        summary: what became of it, as the terminal says it.
        outcome: the same by path.
        names: what to call the files at these paths.
        texts: the original text of each file of the summary, by its name there.
    """

    request: Request
    summary: Scripts | Project
    outcome: Outcome
    names: Names
    texts: Mapping[str, str]
