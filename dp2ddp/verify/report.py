"""A verdict for a reader, and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from click import style

from dp2ddp.command import terminal
from dp2ddp.command.terminal import counted
from dp2ddp.verify.verdict import AGREE, NAMES, Verdict

_TRACEBACK = 60  # lines
_ABOVE = "It runs in a scratch folder with Python files alone beside it: what else it reads by `..` needs a whole path"


def show(verdict: Verdict, name: str, *, quiet: bool = False) -> None:
    """Print a verdict (if `quiet`, it alone) on a script; why a side could not run, with its traceback, is an error."""
    failure = verdict.failure
    if failure is not None:
        said = f"dp2ddp: {name}: the {failure.side} script could not run: {failure.reason}"
        wrote = "\n".join(failure.stderr.rstrip().splitlines()[-_TRACEBACK:])
        hint = _ABOVE * ("'../" in failure.reason)
        for text in filter(None, (style(said, bold=True, fg="red"), wrote, hint)):
            terminal.show_error(text)
        return
    n = verdict.options.replicas
    where = "GPUs" if verdict.options.cuda else "CPU replicas"
    what = "one GPU's training" if verdict.options.one_gpu else f"nn.DataParallel on {n} {where}"
    notes = [f"{name}: {what}, and the converted script on {n} ranks"]
    notes += [style(f"note: {note}", fg="yellow") for note in verdict.notes]
    notes += [style(f"the converted script warns: {warning}", fg="yellow") for warning in verdict.warnings]
    terminal.show_results([*_conclusion(verdict), *([] if quiet else notes)])


def as_json(verdict: Verdict, name: str) -> str:
    """The verdict for programs; what is not finite is null. Steps are from 1."""
    comparison, options = verdict.compared, verdict.options
    sides = {"original": comparison.original, "converted": comparison.converted} if comparison else {}
    told = {
        "script": name,
        "verdict": NAMES[verdict.exit_code],
        "exit_code": verdict.exit_code,
        "replicas": options.replicas,
        "precision": "float64" if options.float64 else "the script's",
        "reference": "one GPU" if options.one_gpu else "nn.DataParallel",
        "device": "cuda" if options.cuda else "cpu",
        "synthetic_data": options.synthetic,
        "findings": [*map(asdict, verdict.findings)],
        "notes": list(verdict.notes),
        "warnings": list(verdict.warnings),
        "steps": [*map(asdict, comparison.steps)] if comparison else [],
        "losses": {side: run.losses() for side, run in sides.items()},
        "seconds": {side: run.seconds for side, run in sides.items()},
        "not_shown": verdict.unshown or None,
        "failure": asdict(verdict.failure) if verdict.failure else None,
    }
    return json.dumps(json.loads(json.dumps(told), parse_constant=lambda name: None), indent=2)


def _conclusion(verdict: Verdict) -> Iterator[str]:
    both = verdict.comparison
    if verdict.exit_code == AGREE:
        worst = f"parameters within {both.worst:.0e}" if both.worst else "same bits"
        steps, losses = counted(len(both.steps), "optimizer step"), counted(len(both.losses), "loss", "es")
        lines = counted(both.original.stdout.count("\n"), "printed line")
        whom = " (with one GPU's training)" * verdict.options.one_gpu
        said = f"They agree{whom}: {steps} ({worst}), {losses}, {lines}, {counted(len(both.original.files()), 'file')}."
        yield style(said, bold=True, fg="green")
    for finding in verdict.findings:
        at = f" ({finding.at})" if finding.at else ""
        yield f"{style('DIFFERENT', bold=True, fg='red')} {finding}{at}"
    if verdict.findings and verdict.findings[0].step is not None and (both.lines or both.files):
        lines, files = counted(len(both.lines), "printed line"), counted(len(both.files), "file")
        yield f"What follows from it: {lines} and {files} that differ."
    if verdict.unshown:
        yield f"{style('NOT SHOWN', bold=True, fg='yellow')} {verdict.unshown}"
