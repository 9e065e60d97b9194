"""`dp2ddp convert`: scripts or a whole project in, and out again."""

from __future__ import annotations

from pathlib import Path

from dp2ddp.convert import pipeline, scripts
from dp2ddp.convert.request import NOTES_OPEN, Request
from dp2ddp.errors import BadInput

__all__ = ["NOTES_OPEN", "Request", "run"]


def run(request: Request) -> int:
    """Carries out a request; returns the exit code.

    Raises:
        BadInput: something the user has to change; nothing is written.
        EditError: a mistake in dp2ddp; nothing is written.
    """
    folders = [name for name in request.inputs if Path(name).is_dir()]
    if folders and len(request.inputs) > 1:
        raise BadInput(folders[0], what="a directory among several inputs", todo="give one directory, or scripts")
    pipeline.check_rules(request.options)
    if not folders:
        return scripts.convert(request)
    from dp2ddp.convert import folder  # with what a single script doesn't need: ignore files, commands

    return folder.convert(request)
