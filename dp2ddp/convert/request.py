"""What the user asked `dp2ddp convert` for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.project.text_files import STANDARD
from dp2ddp.rules import Options

NOTES_OPEN = 1
REFUSED = 2


@dataclass(frozen=True)
class Request:
    """The arguments of the command.

    Attributes:
        inputs: scripts, or one directory, or ``-``.
        options: how to convert.
        output: where to; ``-`` for standard output, None for a diff or `in_place`.
        in_place: write over the inputs.
        entries: the scripts of a directory that are started; found by themselves if there are none.
        force: overwrite what is there.
        vendored: copy the runtime beside every script that is started.
        strict: open notes make the exit code `NOTES_OPEN`.
        form: the form of what is found (one of `formats.FORMATS`); other than text, it goes to standard output.
        verbose: the summary names every line that changed.
        html: where to write a page to look at, None for none.
    """

    inputs: Sequence[str]
    options: Options
    output: str | None = None
    in_place: bool = False
    entries: Sequence[str] = ()
    force: bool = False
    vendored: bool = False
    strict: bool = False
    form: str = "text"
    verbose: bool = False
    html: str | None = None

    @property
    def alone(self) -> bool:
        """Whether a notebook becomes a script; else it stays a notebook."""
        return not (self.in_place or (self.output is not None and self.output.endswith(".ipynb")))

    @property
    def writes(self) -> bool:
        """Whether files are written."""
        return self.in_place or self.output not in (None, STANDARD)


def folders(inputs: Sequence[str]) -> list[str]:
    """Those of the inputs that are directories.

    Raises:
        BadInput: one has no name, as an unset variable of the shell has none.
    """
    if "" in inputs:
        raise BadInput("INPUT", what="an empty name", todo="name a script, or a folder")
    return [name for name in inputs if Path(name).is_dir()]
