"""The pytest plugin: the fixture `dp2ddp_compare`, with which a project tests its conversions.

It is loaded in every run of pytest where dp2ddp is installed, so it imports nothing heavy before the fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from dp2ddp.verify import COUNT

if TYPE_CHECKING:
    from torch import Tensor

    from dp2ddp.verify.run.recording import Recording
    from dp2ddp.verify.run.runs import Run
    from dp2ddp.verify.verdict import Verdict

ACCURACY = r"acc[^0-9]*([0-9.]+)"


class Side:
    """What one of the two scripts did."""

    def __init__(self, run: Run, recording: Recording) -> None:
        self._run = run
        self._recording = recording

    @cached_property
    def losses(self) -> list[float]:
        """What `backward` was called on, over all ranks."""
        return self._run.losses()

    @cached_property
    def output(self) -> str:
        """What the script printed."""
        return self._run.stdout

    @cached_property
    def numbers(self) -> list[float]:
        """All numbers that the script printed."""
        from dp2ddp.verify.compare import printed

        return printed.numbers(self.output)

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """The files that the script wrote, by their path relative to its working directory."""
        return self._run.files()

    @cached_property
    def parameters(self) -> Sequence[Mapping[str, Tensor]]:
        """The parameters after each optimizer step, by name."""
        return [dict(self._recording.parameters(step)) for step in range(len(self._recording.steps))]

    @property
    def seconds(self) -> float:
        """Wall-clock seconds from start to end, imports included. On the CPU both sides run at the same time."""
        return self._run.seconds

    def last(self, pattern: str) -> float:
        """The last number printed that `pattern`'s group matches, ignoring case.

        Raises:
            AssertionError: there is none.
        """
        found = re.findall(pattern, self.output, re.IGNORECASE)
        assert found, f"nothing printed matches {pattern!r}:\n{self.output}"
        return float(found[-1].rstrip("."))


class Compared:
    """Two finished runs."""

    def __init__(self, verdict: Verdict) -> None:
        assert verdict.comparison is not None
        self.verdict = verdict
        self.original = Side(verdict.comparison.original, verdict.comparison.recordings[0])
        self.converted = Side(verdict.comparison.converted, verdict.comparison.recordings[1])

    def assert_same_training(self, rtol: float | None = None) -> None:
        """Fail unless both scripts made the same updates, printed the same numbers and wrote the same files.

        Args:
            rtol: the largest relative difference that counts as agreement; None: that of the comparison.
        """
        __tracebackhide__ = True
        findings = self.verdict.findings if rtol is None else self._beyond(rtol)
        if findings or (rtol is None and self.verdict.unshown):
            findings = findings or [f"not shown: {self.verdict.unshown}"]
            notes = [f"note: {note}" for note in self.verdict.notes]
            pytest.fail("\n".join([*map(str, findings), *notes]), pytrace=False)

    def assert_same_accuracy(self, pattern: str = ACCURACY, atol: float = 0.0) -> None:
        """Fail unless the last numbers printed that `pattern` finds are at most `atol` apart.

        Args:
            pattern: a regular expression with one group, the number. Case doesn't matter.
            atol: in the units that the scripts print.
        """
        __tracebackhide__ = True
        ours, theirs = self.original.last(pattern), self.converted.last(pattern)
        if abs(ours - theirs) > atol:
            first = f"\nfirst of all: {self.verdict.findings[0]}" if self.verdict.findings else ""
            pytest.fail(f"{ours} in the original, {theirs} converted: more than {atol} apart{first}", pytrace=False)

    def _beyond(self, rtol: float) -> Sequence[Any]:
        from dataclasses import replace

        from dp2ddp.verify.compare.causes import explain

        assert self.verdict.comparison is not None
        found = explain(replace(self.verdict.comparison, tolerance=rtol))
        return [finding for finding in found if finding.size > rtol]


@pytest.fixture
def dp2ddp_compare() -> Any:
    """Runs a DataParallel script and its conversion side by side: `dp2ddp_compare("train.py", nproc=2, steps=50)`.

    Arguments: `args`, the script's own; `converted`, the converted script, if there is one; `nproc`, replicas and
    ranks; `steps`, after how many optimizer steps both end; `seed`, for scripts that set none; `tolerance`
    as for `dp2ddp verify`; `device`, "cpu" or "cuda"; `timeout` in seconds; `synthetic_data`, True or a
    number of samples, to fill torchvision's data sets with made-up ones. Returns a `Compared`, whose
    files are there until the test ends. Fails the test where a side can't run, with its traceback.
    """
    with ExitStack() as runs:
        yield _comparer(runs)


def _comparer(stack: ExitStack) -> Callable[..., Compared]:
    def compare(
        script: str | Path,
        args: Sequence[str] = (),
        converted: str | Path | None = None,
        nproc: int = 2,
        steps: int | None = None,
        seed: int = 0,
        tolerance: float = 1e-6,
        device: str = "cpu",
        timeout: float = 600.0,
        synthetic_data: bool | int = False,
    ) -> Compared:
        __tracebackhide__ = True
        from dp2ddp.verify.command import verifying
        from dp2ddp.verify.run.options import Options, Request

        samples = COUNT if synthetic_data is True else synthetic_data or None
        request = Request(
            Path(script),
            [str(argument) for argument in args],
            None if converted is None else Path(converted),
            Options(nproc, steps, cuda=device == "cuda", seed=seed, timeout=timeout, synthetic=samples),
            tolerance,
            keep=True,
        )
        verdict = stack.enter_context(verifying(request))
        if verdict.failure is not None:
            failure = verdict.failure
            pytest.fail(f"{failure.stderr}\nthe {failure.side} script could not run: {failure.reason}", pytrace=False)
        return Compared(verdict)

    return compare
