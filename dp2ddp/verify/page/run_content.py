"""What the page of a verdict says."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from dp2ddp.command.terminal import counted
from dp2ddp.convert.findings import excerpt
from dp2ddp.verify import report
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import TOLERANCE
from dp2ddp.verify.verdict import AGREE, DIFFER, NAMES, NOT_SHOWN, Verdict

_LINES = 400  # of output that are shown
_TRACEBACK = 80
_AROUND = 2  # lines of the script before and after
_PLACES = 20  # in a file


class Printed(NamedTuple):
    """A line of output (from 1); of those that differ, both."""

    number: int
    original: str | None
    converted: str | None
    differs: bool


def of(verdict: Verdict, name: str, command: str) -> Mapping[str, object]:
    """What the template names."""
    comparison, failure = verdict.comparison, verdict.failure
    said = "" if failure is None else "\n".join(failure.stderr.rstrip().splitlines()[-_TRACEBACK:])
    found = {
        "name": name,
        "command": command,
        "badge": NAMES[verdict.exit_code].capitalize(),
        "color": {AGREE: "good", DIFFER: "bad"}.get(verdict.exit_code, "warn"),
        "notes": verdict.notes,
        "sentence": _sentence(verdict),
        "ran": _ran(verdict),
        "failure": failure,
        "traceback": f"{failure.where}\n\n{said}" if failure and failure.where else said,
        "most": _PLACES,
    }
    if comparison is None:
        return {**found, **dict.fromkeys(("findings", "rows", "files", "output"), ())}
    return {
        **found,
        "findings": [(finding, _code(finding.at, comparison)) for finding in verdict.findings],
        "rows": list(_rows(comparison, verdict)),
        "files": _files(comparison),
        "output": list(_output(comparison)),
    }


def _sentence(verdict: Verdict) -> str:
    comparison = verdict.comparison
    if verdict.failure is not None:
        return f"The {verdict.failure.side} script could not run: {verdict.failure.reason}"
    assert comparison is not None
    if verdict.exit_code != DIFFER:
        return f"Nothing is shown: {verdict.unshown}." if verdict.unshown else report.agreement(comparison)
    first = verdict.findings[0]
    if comparison.trained_alike:
        return f"Both scripts train the same model, but they don't say or write the same: {first.what}."
    if first.step is not None:
        return f"The scripts part at optimizer step {first.step}: {first.what}."
    return f"The scripts differ: {first.what}."


def _ran(verdict: Verdict) -> Iterator[tuple[str, str]]:
    options, comparison = verdict.options, verdict.comparison
    n = options.replicas
    yield "original", f"nn.DataParallel on {n} {'GPUs' if options.cuda else 'emulated replicas on the CPU'}"
    yield "converted", f"{n} ranks"
    yield "computed in", "float64" if options.float64 else "the script's own precision"
    if comparison is not None:
        seconds = [f"{run.seconds:.1f} s" for run in (comparison.original, comparison.converted)]
        yield "tolerance", f"{TOLERANCE:g}, relative"
        yield "took", f"original {seconds[0]}, converted {seconds[1]}"
    if verdict.synthetic:
        yield "synthetic data", ", ".join(map(str, verdict.synthetic))


def _rows(comparison: Comparison, verdict: Verdict) -> Iterator[tuple[str, str, str, str]]:
    """All that was compared: how much of it, what came out, and its badge's color.

    Where that shows nothing, what the verdict doesn't count is only told.
    """
    one, codes = comparison.original, (comparison.original.exit_code, comparison.converted.exit_code)
    worst = comparison.worst.relative
    steps = [step for step in comparison.steps if step.relative > comparison.allowed(step.step)]
    files = {file.file for file in comparison.wrong_files}
    setting = comparison.setting.what if comparison.setting else ""
    rows: Sequence[tuple[str, str, Collection[object] | str, str]] = (
        ("parameters", counted(len(comparison.steps), "step"), steps,
         f"within {worst:.0e}" if worst else "the same bits"),
        ("losses", counted(len(comparison.losses), "loss", "es"), comparison.wrong_losses, "the same"),
        ("batches", counted(len(comparison.recordings[0].batches), "batch", "es"),
         "other samples" if comparison.batch else "", "the same samples"),
        ("optimizers' settings", "each step", setting, "the same"),
        ("ranks among each other", counted(len(comparison.recordings) - 1, "rank"),
         "other parameters" if comparison.apart else "", "the same bits"),
        ("printed lines", counted(one.stdout.count("\n"), "line"), comparison.wrong_lines, "the same"),
        ("files written", counted(len(one.files()), "file"), files, "the same"),
        ("exit codes", f"{codes[0]} and {codes[1]}", "other" if codes[0] != codes[1] else "", "the same"),
        *(("how often", text, "not the same", "") for text in comparison.counts),
    )  # fmt: skip
    bad = "plain" if verdict.exit_code == NOT_SHOWN else "bad"
    for what, amount, wrong, right in rows:
        said = wrong if isinstance(wrong, str) else f"{len(wrong)} not the same"
        yield what, amount, said if wrong else right, bad if wrong else "good"


def _code(at: str | None, comparison: Comparison) -> Sequence[tuple[int, str, bool]]:
    """The lines of the script around `at`: number, text, whether it is the one."""
    name, _, number = (at or "").rpartition(":")
    lines = excerpt(str(comparison.original.work / name), int(number), _AROUND) if number else ()
    return [(n, text, n == int(number)) for n, text in lines]


def _files(comparison: Comparison) -> Sequence[tuple[str, Sequence[str]]]:
    """All files that either side wrote, and the places where they differ; those that do first."""
    wrong: dict[str, list[str]] = {}
    for each in comparison.wrong_files:
        by = "" if math.isinf(each.relative) else f": {each.relative:.1e}"
        wrong.setdefault(each.file, []).append(f"{each.where}{by}")
    return [*wrong.items(), *((name, ()) for name in comparison.original.files() if name not in wrong)]


def _output(comparison: Comparison) -> Iterator[Printed]:
    """The first lines that the original printed, and all that differ."""
    wrong = {line.line for line in comparison.wrong_lines}
    sides = comparison.original.stdout.splitlines(), comparison.converted.stdout.splitlines()
    for number in range(1, max(map(len, sides)) + 1):
        if number <= _LINES or number in wrong:
            texts = [side[number - 1] if number <= len(side) else None for side in sides]
            yield Printed(number, texts[0], texts[1], number in wrong)
