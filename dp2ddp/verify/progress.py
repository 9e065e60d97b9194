"""How far a comparison is, on standard error: a line that changes on a terminal, else a line every so often."""

from __future__ import annotations

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
_A_SECOND = 8  # times the line on a terminal changes


class Stage(Enum):
    """What is being done."""

    READING = "reading and converting the scripts"
    STARTING = "starting both scripts"
    TRAINING = "training"
    COMPARING = "comparing what was printed and written"


class Show(Protocol):
    """Is told what is being done, and how far it is; `news` is shown at once."""

    def __call__(self, stage: Stage, steps: Steps | None, news: str = "") -> None: ...


def silent(stage: Stage, steps: Steps | None, news: str = "") -> None:
    """Shows nothing."""


@contextmanager
def _changing(total: int | None) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = [] if total is None else [BarColumn(24)]
    columns = [SpinnerColumn(), TextColumn("{task.description}"), *bar, TimeElapsedColumn()]
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True, refresh_per_second=_A_SECOND) as progress:
        task = progress.add_task(Stage.READING.value, total=total)

        def show(stage: Stage, steps: Steps | None, news: str = "") -> None:
            if news:
                console.print(news, markup=False, end="")
            done = 0 if steps is None else len(steps.differences)
            progress.update(task, description=said(stage, steps), completed=done)

        yield show


def _lines() -> Show:
    started = time.monotonic()
    following = started + _FIRST_LINE

    def show(stage: Stage, steps: Steps | None, news: str = "") -> None:
        nonlocal following
        now = time.monotonic()
        if news:
            click.echo(news, nl=False, err=True)
        if now >= following:
            following = now + _LINES_EVERY
            click.echo(f"dp2ddp: verify: {said(stage, steps)} ({now - started:.0f} s)", err=True)

    return show


@contextmanager
def showing(quiet: bool, steps: int | None) -> Iterator[Show]:
    """What shows progress on standard error.

    Args:
        quiet: nothing is shown.
        steps: how many optimizer steps both sides make; None: not known.
    """
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _changing(steps) as show:
            yield show
    else:
        yield _lines()


def said(stage: Stage, steps: Steps | None) -> str:
    """In words: how many steps each side has made, how many were compared, and with what result."""
    if steps is None or not any(steps.made):
        return Stage.STARTING.value if stage is Stage.TRAINING else stage.value
    original, *ranks = steps.made
    made = f"original at step {original}, converted at {min(ranks)}"
    if not steps.differences:
        return made
    worst = max(step.relative for step in steps.differences)
    result = f"differ by {worst:.0e}" if worst else "same bits"
    return f"{made}; {len(steps.differences)} compared: {result}"
