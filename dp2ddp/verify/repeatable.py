"""Does the original do the same twice? Where it doesn't, no difference from it shows anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dp2ddp.verify.compare.causes import explain
from dp2ddp.verify.compare.finding import STRUCTURE, Finding
from dp2ddp.verify.compare.recordings import Comparison
from dp2ddp.verify.precision import beyond


@dataclass(frozen=True)
class Judged:
    """In what a conversion differs from its original, and in what the original differs from itself.

    Attributes:
        findings: what the original's own differences don't explain.
        unshown: in what the original differs from itself, if that explains something.
    """

    findings: Sequence[Finding]
    unshown: Finding | None = None


def judge(comparison: Comparison, findings: Sequence[Finding], twice: Comparison) -> Judged:
    """Take away from `findings` what the original's second run has in common with them.

    Args:
        comparison: the original and its conversion.
        findings: in what they differ.
        twice: the original and its second run.
    """
    own = explain(twice)
    begins = min((finding.step for finding in own if finding.step is not None), default=None)
    if begins is not None:  # what follows from training that differs, output and files, is explained, too
        sure = STRUCTURE if twice.setting else STRUCTURE | {"setting"}
        shown = [each for each in findings if each.kind in sure or (each.step is not None and each.step < begins)]
    else:
        lines = {line.line for line in twice.lines}
        files = {(file.file, file.where) for file in twice.files}
        left = replace(
            comparison,
            lines=tuple(line for line in comparison.lines if line.line not in lines),
            files=tuple(file for file in comparison.files if (file.file, file.where) not in files),
        )
        shown = beyond(explain(left), comparison.tolerance)
    return Judged(shown, own[0] if own and len(shown) < len(findings) else None)
