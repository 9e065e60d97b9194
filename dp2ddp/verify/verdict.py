"""What comes out of a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import Finding
from dp2ddp.verify.run.run_options import Options

AGREE, DIFFER, FAILED, NOT_SHOWN = 0, 1, 2, 4  # 3 is a mistake in dp2ddp
NAMES = {AGREE: "agree", DIFFER: "differ", FAILED: "could not run", NOT_SHOWN: "not shown"}


@dataclass(eq=False)
class Failure(Exception):  # noqa: N818 - the user's script failed, not this program
    """A side that could not run.

    Attributes:
        side: which.
        reason: why, in a line.
        stderr: what it wrote to standard error, without frames that are verify's, or C++'s.
        in_replicas: the original had run a model in replicas by then, which may be what fails.
    """

    side: str
    reason: str
    stderr: str
    in_replicas: bool = False


@dataclass(frozen=True)
class Verdict:
    """What came out.

    Args:
        options: how both sides ran in the end.
        compared: None where a side could not run.
        findings: in what they differ, the root of it first.
        notes: what a reader has to know about how they were compared.
        warnings: what the runtime warned of, in the converted script.
        failure: the side that could not run.
        unshown: why nothing is shown, or not all: what, and what to do about it.
    """

    options: Options
    compared: Comparison | None = None
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    failure: Failure | None = None
    unshown: str = ""

    @property
    def comparison(self) -> Comparison:
        """Of two sides that could run."""
        assert self.compared is not None
        return self.compared

    @property
    def exit_code(self) -> int:
        """0 shown to agree, 1 shown to differ, 2 could not run, 4 neither is shown."""
        return FAILED if self.failure else DIFFER if self.findings else NOT_SHOWN if self.unshown else AGREE

    def noting(self, *notes: str) -> Verdict:
        """The verdict with more to know about it."""
        return replace(self, notes=[*self.notes, *notes])

    def showing_nothing(self, why: str, but: Sequence[Finding] = ()) -> Verdict:
        """The verdict where nothing is shown, `but` some findings."""
        return replace(self, findings=but, unshown=why)
