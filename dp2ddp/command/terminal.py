"""What is said, and where: results on standard output, messages on standard error, in colors where asked for.

The streams may be closed, by whoever started the command: Python has None in their place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, Any

import click

from dp2ddp.command import progress
from dp2ddp.errors import BadInput, printable_lines

#: What `--color` takes.
COLORS = ("auto", "always", "never")
_QUIET, _VERBOSE = "dp2ddp.quiet", "dp2ddp.verbose"


def set_up(context: click.Context, *, quiet: bool, verbose: bool, color: str) -> None:
    """Sets how the command of `context` speaks.

    Args:
        quiet: no messages but errors.
        verbose: more of them.
        color: one of `COLORS`.
    """
    context.meta.update({_QUIET: quiet, _VERBOSE: verbose})
    context.color = {"always": True, "never": False}.get(color)


def is_quiet() -> bool:
    """Whether only results and errors are wanted."""
    return bool(_asked(_QUIET))


def is_verbose() -> bool:
    """Whether all is wanted that can be said."""
    return bool(_asked(_VERBOSE))


def _asked(name: str) -> Any:
    context = click.get_current_context(silent=True)
    return context and context.meta.get(name)


def is_colored(*, to_error: bool) -> bool:
    """Whether what is written there gets colors: as `--color` says, else on a terminal without `NO_COLOR`."""
    context = click.get_current_context(silent=True)
    if context is not None and context.color is not None:
        return context.color
    if os.environ.get("NO_COLOR"):
        return False
    stream = sys.stderr if to_error else sys.stdout
    on_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return bool(os.environ.get("FORCE_COLOR")) or on_terminal


def show_results(lines: Iterable[str]) -> None:
    """Prints what was asked for on standard output; never wrapped, as programs read it, too."""
    _show(lines, to_error=False)


def show_messages(lines: Iterable[str]) -> None:
    """Prints what a person should know on standard error, if he wants to."""
    if not is_quiet():
        _show((line.replace("\n", "\\n") for line in lines), to_error=True)


def show_error(line: str) -> None:
    """Prints why a command ends, however quiet it is."""
    _show([line], to_error=True)


def counted(number: int, what: str, plural: str = "s") -> str:
    """`1 file`, `1,200 files`; `plural` is what more than one (and none) adds."""
    return f"{number:,} {what}{'' if number == 1 else plural}"


def write_result(data: bytes) -> None:
    """Writes bytes to standard output."""
    progress.end()
    try:
        _write(data)
    except BrokenPipeError:
        _let_go(sys.stdout)


def _show(lines: Iterable[str], *, to_error: bool) -> None:
    progress.end()
    for line in lines:
        try:
            click.echo(printable_lines(line), err=to_error, color=is_colored(to_error=to_error))
        except BrokenPipeError:
            _let_go(sys.stderr if to_error else sys.stdout)
            return


def _let_go(stream: IO[str]) -> None:
    """Whoever read the stream has left, as `head` does: that is no failure, and the rest goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _write(data: bytes) -> None:
    """Writes to standard output, at once.

    Raises:
        BadInput: it is closed, or full.
        BrokenPipeError: whoever read it has left, as `head` does.
    """
    if sys.stdout is None:
        raise BadInput("standard output", what="can't be written, as it is closed")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _let_go(sys.stdout)  # what Python holds back goes nowhere, or it would try again when it ends
        raise BadInput("standard output", what=f"can't be written ({error.strerror})") from None
