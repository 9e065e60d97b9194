"""`dp2ddp convert`: scripts or a whole project in, and out again."""

from __future__ import annotations

from dp2ddp.convert import page, pipeline, scripts
from dp2ddp.convert.request import NOTES_OPEN, Request, folders
from dp2ddp.errors import BadInput

__all__ = ["NOTES_OPEN", "Request", "run"]


def run(request: Request) -> int:
    """Carries out a request; returns the exit code.

    Raises:
        BadInput: something the user has to change; nothing is written.
        EditError: a mistake in dp2ddp; nothing is written.
    """
    directories = folders(request.inputs)
    if directories and len(request.inputs) > 1:
        raise BadInput(directories[0], what="a directory among several inputs", todo="give one directory, or scripts")
    pipeline.check_rules(request.options)
    page.check(request)
    if not directories:
        return scripts.convert(request)
    from dp2ddp.convert import folder  # with what a single script doesn't need: ignore files, commands

    return folder.convert(request)
