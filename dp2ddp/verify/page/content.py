"""What the page of a verdict says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dp2ddp.verify.compare.recordings import Comparison
from dp2ddp.verify.counting import counted
from dp2ddp.verify.page import chart, numbers, places
from dp2ddp.verify.page.chart import Chart, Curve
from dp2ddp.verify.page.numbers import Numbers
from dp2ddp.verify.verdict import AGREE, DIFFER, NAMES, NOT_SHOWN, Failure, Verdict

_CHARTS = 16  # of printed numbers
_LINES = 400  # of output that are shown
_TRACEBACK = 80


@dataclass(frozen=True)
class Row:
    """Something that was compared: how much of it, and what came out. `color` is a badge's: good, bad, plain."""

    what: str
    amount: str
    result: str
    color: str


def of(verdict: Verdict, name: str, command: str) -> Mapping[str, object]:
    """What the template names."""
    comparison = verdict.comparison
    badge = NAMES[verdict.exit_code].capitalize()
    color = {AGREE: "good", DIFFER: "bad"}.get(verdict.exit_code, "warn")
    common = {
        "name": name,
        "command": command,
        "badge": badge,
        "color": color,
        "notes": verdict.notes,
        "sentence": _sentence(verdict),
        "ran": _ran(verdict),
        "failure": verdict.failure,
        "traceback": _told(verdict.failure) if verdict.failure else "",
    }
    if comparison is None:
        return {**common, **dict.fromkeys(("findings", "rows", "charts", "more", "singles", "files", "output"), ())}
    printed = numbers.of(comparison.original.stdout, comparison.converted.stdout)
    curves = [each for each in printed if not each.single]
    return {
        **common,
        "findings": [places.shown(finding, comparison) for finding in verdict.findings],
        "rows": _rows(comparison, verdict),
        "charts": [*_training(comparison), *(_curve(number, each) for number, each in enumerate(curves[:_CHARTS]))],
        "more": [each.name for each in curves[_CHARTS:]],
        "singles": [_single(each) for each in printed if each.single],
        "files": places.files(comparison),
        "output": places.output(comparison, _LINES),
    }


def _told(failure: Failure) -> str:
    """Where each rank was, and what the side that failed wrote."""
    lines = failure.stderr.rstrip().splitlines()[-_TRACEBACK:]
    return "\n".join([failure.where, "", *lines] if failure.where else lines)


def _sentence(verdict: Verdict) -> str:
    comparison = verdict.comparison
    if verdict.failure is not None:
        return f"The {verdict.failure.side} script could not run: {verdict.failure.reason}"
    assert comparison is not None
    steps = len(comparison.steps)
    if verdict.exit_code == NOT_SHOWN:
        return f"Nothing is shown: {verdict.unshown}."
    if verdict.exit_code == AGREE and not steps:
        return "Both scripts print and write the same. No optimizer step was taken."
    if verdict.exit_code == AGREE:
        worst = comparison.worst.relative
        how = f"parameters within {worst:.0e}" if worst else "the same bits in every parameter"
        return f"Both scripts train the same model: {how} after each of {counted(steps, 'optimizer step')}."
    first = verdict.findings[0]
    if comparison.trained_alike:
        return f"Both scripts train the same model, but they don't say or write the same: {first.what}."
    if first.step is not None:
        return f"The scripts part at optimizer step {first.step}: {first.what}."
    return f"The scripts differ: {first.what}."


def _ran(verdict: Verdict) -> Sequence[tuple[str, str]]:
    options, comparison = verdict.options, verdict.comparison
    n = options.replicas
    where = f"{n} {options.gpus}" if options.gpus else f"{n} emulated replicas on the CPU"
    precision = "float64" if options.float64 else "the script's own precision"
    found = [("original", f"nn.DataParallel on {where}"), ("converted", f"{n} ranks"), ("computed in", precision)]
    if comparison is not None:
        found += [("tolerance", f"{comparison.tolerance:g}, relative")]
        found += [
            ("took", f"original {comparison.original.seconds:.1f} s, converted {comparison.converted.seconds:.1f} s")
        ]
    found += [("synthetic data", ", ".join(map(str, verdict.synthetic)))] if verdict.synthetic else []
    return found


def _rows(comparison: Comparison, verdict: Verdict) -> Sequence[Row]:
    """All that was compared. Where it shows nothing, what the verdict doesn't count is only told."""
    bad = "plain" if verdict.exit_code == NOT_SHOWN else "bad"

    def row(what: str, amount: str, wrong: str, right: str = "the same") -> Row:
        return Row(what, amount, wrong or right, bad if wrong else "good")

    apart = sum(step.relative > comparison.allowed(step.step) for step in comparison.steps)
    worst = comparison.worst.relative
    losses, lines = len(comparison.wrong_losses), len(comparison.wrong_lines)
    files = len({file.file for file in comparison.wrong_files})
    one, other = comparison.original, comparison.converted
    return [
        row(
            "parameters, step by step",
            counted(len(comparison.steps), "step"),
            f"{apart} beyond the tolerance" if apart else "",
            f"within {worst:.0e}" if worst else "the same bits",
        ),
        row(
            "losses", counted(len(comparison.losses), "loss", "es"), f"{losses} beyond the tolerance" if losses else ""
        ),
        row(
            "batches",
            counted(len(comparison.recordings[0].batches), "batch", "es"),
            "other samples" if comparison.batch else "",
            "the same samples",
        ),
        row("optimizers' settings", "each step", str(comparison.setting or "")),
        row(
            "ranks among each other",
            counted(len(comparison.recordings) - 1, "rank"),
            "other parameters" if comparison.apart else "",
            "the same bits",
        ),
        row("printed lines", counted(one.stdout.count("\n"), "line"), f"{lines} not the same" if lines else ""),
        row("files written", counted(len(one.files()), "file"), f"{files} not the same" if files else ""),
        row(
            "exit codes", f"{one.exit_code} and {other.exit_code}", "other" if one.exit_code != other.exit_code else ""
        ),
        *(Row("how often", text, "not the same", "bad") for text in comparison.counts),
    ]


def _training(comparison: Comparison) -> Sequence[Chart]:
    found = []
    losses = [[_finite(value) for value in run.losses()] for run in (comparison.original, comparison.converted)]
    if losses[0] or losses[1]:
        worst = max(comparison.losses, default=0.0)
        how = f"they differ by up to {worst:.0e}" if worst else "they are the same"
        summary = f"The losses of both scripts over {len(losses[0])} calls of backward: {how}."
        found.append(chart.of_values("loss", "Loss", "call of backward", "loss", summary, _both(*losses)))
    if comparison.steps:
        values = [step.relative for step in comparison.steps]
        first = comparison.first
        how = f"beyond the tolerance from step {first.step} on" if first else "never beyond the tolerance"
        summary = f"The largest relative difference of a parameter after each of {len(values)} steps: {how}."
        title = "Difference of the parameters"
        found.append(chart.of_differences("difference", title, "optimizer step", values, comparison.tolerance, summary))
    return found


def _curve(number: int, each: Numbers) -> Chart:
    how = "the same in both" if each.agree else "not the same in both"
    summary = f"{each.name}, printed {len(each.sides[0])} times: {how}."
    return chart.of_values(
        f"printed{number}", each.name, "time it was printed", "as printed", summary, _both(*each.sides)
    )


def _both(original: chart.Values, converted: chart.Values) -> list[Curve]:
    return [Curve("original", "original", original), Curve("converted", "converted", converted)]


def _single(each: Numbers) -> tuple[str, str, str, bool]:
    texts = ["nothing" if not side else "not finite" if side[0] is None else f"{side[0]:.10g}" for side in each.sides]
    return each.name, texts[0], texts[1], each.agree


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
