"""What is asked of a verification, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.verify.compare.causes import Finding
from dp2ddp.verify.compare.compare import TOLERANCE, Comparison
from dp2ddp.verify.compare.repeats import Repeats
from dp2ddp.verify.emulate.synthetic import MadeUp
from dp2ddp.verify.run.runs import Options

AGREE, DIFFER, FAILED = 0, 1, 2
REPEATS = 3


@dataclass(frozen=True)
class Request:
    """What to verify.

    Args:
        script: the original.
        arguments: the script's own.
        converted: the converted script; None: convert the original.
        options: how both run. `float64` is chosen here.
        tolerance: the largest relative difference that counts as agreement.
        repeats: over how many seeds to compare final numbers, where exactness is impossible; None: `REPEATS`.
        folder: where to run; None: a temporary folder that is gone afterwards.
        allow_ddp: convert a script that can also set up DistributedDataParallel itself.
    """

    script: Path
    arguments: Sequence[str] = ()
    converted: Path | None = None
    options: Options = field(default_factory=Options)
    tolerance: float = TOLERANCE
    repeats: int | None = None
    folder: Path | None = None
    allow_ddp: bool = False


@dataclass(frozen=True)
class Failure:
    """A side that could not run, and what it wrote to standard error."""

    side: str
    reason: str
    stderr: str


@dataclass(frozen=True)
class Verdict:
    """What came out.

    Args:
        options: how both sides ran in the end.
        comparison: None where a side could not run.
        findings: in what they differ, the root of it first.
        notes: what a reader has to know about how they were compared.
        failure: the side that could not run.
        repeats: final numbers over several seeds, where the sides draw differently.
    """

    options: Options
    comparison: Comparison | None = None
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    failure: Failure | None = None
    repeats: Repeats | None = None

    @property
    def exit_code(self) -> int:
        """0 agree, 1 differ, 2 could not run."""
        if self.failure is not None:
            return FAILED
        return DIFFER if self.findings else AGREE

    @property
    def synthetic(self) -> Sequence[MadeUp]:
        """The data sets whose samples were made up."""
        return self.comparison.recordings[0].synthetic if self.comparison else ()
