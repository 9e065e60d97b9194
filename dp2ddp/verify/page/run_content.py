"""What the page of a verdict says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dp2ddp.command.terminal import counted
from dp2ddp.convert.findings import excerpt
from dp2ddp.verify import report
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import TOLERANCE
from dp2ddp.verify.verdict import AGREE, DIFFER, NAMES, Verdict

_TRACEBACK = 80  # lines
_AROUND = 2  # lines of the script before and after


def of(verdict: Verdict, name: str, command: str) -> Mapping[str, object]:
    """What the template names."""
    comparison, failure = verdict.comparison, verdict.failure
    said = "" if failure is None else "\n".join(failure.stderr.rstrip().splitlines()[-_TRACEBACK:])
    return {
        "name": name,
        "command": command,
        "badge": NAMES[verdict.exit_code].capitalize(),
        "color": {AGREE: "good", DIFFER: "bad"}.get(verdict.exit_code, "warn"),
        "notes": [*verdict.notes, *(f"the converted script warns: {each}" for each in verdict.warnings)],
        "sentence": _sentence(verdict),
        "ran": _ran(verdict),
        "failure": failure,
        "traceback": f"{failure.where}\n\n{said}" if failure and failure.where else said,
        "findings": [(finding, _code(finding.at, comparison)) for finding in verdict.findings],
    }


def _sentence(verdict: Verdict) -> str:
    comparison = verdict.comparison
    if verdict.failure is not None:
        return f"The {verdict.failure.side} script could not run: {verdict.failure.reason}"
    assert comparison is not None
    if verdict.exit_code != DIFFER:
        return f"Nothing is shown: {verdict.unshown}." if verdict.unshown else report.agreement(comparison)
    first = verdict.findings[0]
    if first.step is not None:
        return f"The scripts part at optimizer step {first.step}: {first.what}."
    return f"Both scripts train the same model, but they don't do the same: {first.what}."


def _ran(verdict: Verdict) -> Iterator[tuple[str, str]]:
    options, comparison = verdict.options, verdict.comparison
    n = options.replicas
    replicas = f"nn.DataParallel on {n} {'GPUs' if options.cuda else 'emulated replicas on the CPU'}"
    yield "original", "one GPU's training" if options.one_gpu else replicas
    yield "converted", f"{n} ranks"
    yield "computed in", "float64" if options.float64 else "the script's own precision"
    if comparison is not None:
        one, other = comparison.original, comparison.converted
        steps, losses = counted(len(comparison.steps), "step"), counted(len(comparison.losses), "loss", "es")
        files = counted(len(one.files()), "file")
        yield "compared", f"{steps}, {losses}, {counted(one.stdout.count(chr(10)), 'printed line')}, {files}"
        yield "tolerance", f"{TOLERANCE:g}, relative"
        yield "took", f"original {one.seconds:.1f} s, converted {other.seconds:.1f} s"
    if verdict.synthetic:
        yield "synthetic data", ", ".join(map(str, verdict.synthetic))


def _code(at: str | None, comparison: Comparison | None) -> Sequence[tuple[int, str, bool]]:
    """The lines of the script around `at`: number, text, whether it is the one."""
    name, _, number = (at or "").rpartition(":")
    if not number or comparison is None:
        return ()
    lines = excerpt(str(comparison.original.work / name), int(number), _AROUND)
    return [(n, text, n == int(number)) for n, text in lines]
