"""The pytest plugin: the fixture `dp2ddp_compare`, with which a project tests its conversions.

It is loaded in every run of pytest where dp2ddp is installed, so it imports nothing heavy before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dp2ddp.verify import COUNT

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict


class Compared:
    """Two finished runs.

    Attributes:
        verdict: what was found.
        original, converted: what each side did: `losses`, which `backward` was called on, over all ranks; `output`,
            what rank 0 printed; `files` that were written, by their path relative to the working directory.
    """

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.original, self.converted = (
            SimpleNamespace(losses=run.losses(), output=run.stdout, files=run.files())
            for run in (verdict.comparison.original, verdict.comparison.converted)
        )

    def assert_same_training(self) -> None:
        """Fail unless both scripts are shown to make the same updates, print the same numbers, write the same files."""
        __tracebackhide__ = True
        if self.verdict.exit_code:
            unshown = [f"not shown: {self.verdict.unshown}"] if not self.verdict.findings else []
            notes = [f"note: {note}" for note in self.verdict.notes]
            pytest.fail("\n".join([*map(str, self.verdict.findings), *unshown, *notes]), pytrace=False)


@pytest.fixture
def dp2ddp_compare() -> Any:
    """Runs a DataParallel script and its conversion side by side: `dp2ddp_compare("train.py", nproc=2, steps=50)`.

    The arguments are `dp2ddp verify`'s options; `args` are the script's own. `synthetic_data` may be True or a number
    of samples. Returns a `Compared`, whose files are there until the test ends. Fails the test where a side can't run.
    """
    with ExitStack() as stack:

        def compare(
            script: str | Path,
            args: Sequence[str] = (),
            converted: str | Path | None = None,
            nproc: int = 2,
            steps: int | None = None,
            device: str = "cpu",
            timeout: float = 600.0,
            synthetic_data: bool | int = False,
        ) -> Compared:
            __tracebackhide__ = True
            from dp2ddp.verify.command import verifying
            from dp2ddp.verify.run.run_options import Options

            samples = COUNT if synthetic_data is True else synthetic_data or None
            options = Options(nproc, steps, cuda=device == "cuda", timeout=timeout, synthetic=samples)
            other = None if converted is None else Path(converted)
            verdict = stack.enter_context(verifying(Path(script), [*map(str, args)], other, options))
            failed = verdict.failure
            if failed is not None:
                pytest.fail(f"{failed.stderr}\nthe {failed.side} script could not run: {failed.reason}", pytrace=False)
            return Compared(verdict)

        yield compare
