"""A verdict for a reader, and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from click import style

from dp2ddp.command import terminal
from dp2ddp.command.terminal import counted
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.verdict import AGREE, NAMES, Verdict

_TRACEBACK = 60  # lines


def show(verdict: Verdict, name: str, *, quiet: bool = False) -> None:
    """Print a verdict on the script `name`; why a side could not run, and its own traceback, go to standard error.

    Args:
        quiet: the verdict alone.
    """
    failure = verdict.failure
    if failure is not None:
        said = f"dp2ddp: {name}: the {failure.side} script could not run: {failure.reason}"
        wrote = "\n".join(failure.stderr.rstrip().splitlines()[-_TRACEBACK:])
        for text in filter(None, (style(said, bold=True, fg="red"), wrote)):
            terminal.show_error(text)
        return
    n = verdict.options.replicas
    where = "GPUs" if verdict.options.cuda else "CPU replicas"
    what = "one GPU's training" if verdict.options.one_gpu else f"nn.DataParallel on {n} {where}"
    notes = [f"{name}: {what}, and the converted script on {n} ranks"]
    notes += [style(f"note: {note}", fg="yellow") for note in verdict.notes]
    notes += [style(f"the converted script warns: {warning}", fg="yellow") for warning in verdict.warnings]
    terminal.show_results([*_conclusion(verdict), *([] if quiet else notes)])


def as_data(verdict: Verdict, name: str) -> dict[str, Any]:
    """The verdict as plain data for `json.dumps`; what is not finite is None. Steps are from 1."""
    comparison, failure = verdict.compared, verdict.failure
    steps = comparison.steps if comparison else ()
    sides = {"original": comparison.original, "converted": comparison.converted} if comparison else {}
    return {
        "script": name,
        "verdict": NAMES[verdict.exit_code],
        "exit_code": verdict.exit_code,
        "replicas": verdict.options.replicas,
        "precision": "float64" if verdict.options.float64 else "the script's",
        "reference": "one GPU" if verdict.options.one_gpu else "nn.DataParallel",
        "device": "cuda" if verdict.options.cuda else "cpu",
        "synthetic_data": verdict.options.synthetic,
        "findings": [{**asdict(each), "size": _finite(each.size)} for each in verdict.findings],
        "notes": list(verdict.notes),
        "warnings": list(verdict.warnings),
        "steps": [{**asdict(each), "relative": _finite(each.relative)} for each in steps],
        "losses": {side: [*map(_finite, run.losses())] for side, run in sides.items()},
        "seconds": {side: run.seconds for side, run in sides.items()},
        "not_shown": verdict.unshown or None,
        "failure": asdict(failure) if failure else None,
    }


def _conclusion(verdict: Verdict) -> Iterator[str]:
    if verdict.exit_code == AGREE:
        yield style(agreement(verdict.comparison), bold=True, fg="green")
    for finding in verdict.findings:
        at = f" ({finding.at})" if finding.at else ""
        yield f"{style('DIFFERENT', bold=True, fg='red')} {finding}{at}"
    if verdict.findings and verdict.findings[0].step is not None:
        yield from _following(verdict.comparison)
    if verdict.unshown:
        yield f"{style('NOT SHOWN', bold=True, fg='yellow')} {verdict.unshown}"


def _following(comparison: Comparison) -> Iterator[str]:
    lines, files = len(comparison.lines), len(comparison.files)
    if lines or files:
        yield f"What follows from it: {counted(lines, 'printed line')} and {counted(files, 'file')} that differ."


def agreement(comparison: Comparison) -> str:
    """What agrees, in a sentence."""
    lines, files = comparison.original.stdout.count("\n"), len(comparison.original.files())
    worst = f"parameters within {comparison.worst:.0e}" if comparison.worst else "same bits"
    return (
        f"They agree: {counted(len(comparison.steps), 'optimizer step')} ({worst}), "
        f"{counted(len(comparison.losses), 'loss', 'es')}, {counted(lines, 'printed line')}, {counted(files, 'file')}."
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
