"""How far a comparison is, on standard error: a line that changes on a terminal, else a line every so often."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from dp2ddp.verify.compare.steps import Steps

_FIRST_LINE, _LINES_EVERY = 10.0, 30.0  # seconds
_CHANGES_EVERY = 0.125


class Stage(Enum):
    """What is being done."""

    STARTING = "starting both scripts"
    TRAINING = "training"
    COMPARING = "comparing what was printed and written"


class Show(Protocol):
    """Is told what is being done, and how far it is; `news` is shown at once."""

    def __call__(self, stage: Stage, steps: Steps | None, news: str = "") -> None: ...


def silent(stage: Stage, steps: Steps | None, news: str = "") -> None:
    """Shows nothing."""


@contextmanager
def showing(quiet: bool, total: int | None) -> Iterator[Show]:
    """What shows progress on standard error.

    Args:
        quiet: nothing is shown.
        total: how many optimizer steps both sides make; None: not known.
    """
    if quiet:
        yield silent
        return
    changing = sys.stderr.isatty()
    started = time.monotonic()
    following = started + (0.0 if changing else _FIRST_LINE)

    def write(text: str, end: str = "") -> None:
        """In place of the line that is there."""
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r{text[:width]:<{width}}\r{end}" if changing else f"{text}{end}", nl=False, err=True)

    def show(stage: Stage, steps: Steps | None, news: str = "") -> None:
        nonlocal following
        now = time.monotonic()
        if news:
            write("")
            click.echo(news, nl=False, err=True)
        if now >= following:
            following = now + (_CHANGES_EVERY if changing else _LINES_EVERY)
            write(
                f"dp2ddp: verify: {progress_text(stage, steps, total)} ({now - started:.0f} s)",
                "" if changing else "\n",
            )

    try:
        yield show
    finally:
        write("")


def progress_text(stage: Stage, steps: Steps | None, total: int | None = None) -> str:
    """In words: how many steps each side has made, how many were compared, and with what result."""
    if steps is None or not any(steps.made):
        return Stage.STARTING.value if stage is Stage.TRAINING else stage.value
    original, *ranks = steps.made
    of = "" if total is None else f" of {total}"
    made = f"original at step {original}{of}, converted at {min(ranks)}"
    if not steps.differences:
        return made
    worst = max(step.relative for step in steps.differences)
    result = f"differ by {worst:.0e}" if worst else "same bits"
    return f"{made}; {len(steps.differences)} compared: {result}"
