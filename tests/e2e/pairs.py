"""Runs of a fixture's original and of its conversion side by side, forked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import fixture_data
from nursery import Nursery

from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.run import runs
from dp2ddp.verify.run.runs import Options, Run


@dataclass(frozen=True)
class Pair:
    """Folders of a finished original and converted run."""

    original: Run
    converted: Run

    @cached_property
    def compared(self) -> Comparison:
        return Comparison(self.original, self.converted)


@dataclass(frozen=True)
class Pairs:
    """Starts pairs below `root`."""

    root: Path
    nursery: Nursery

    def run(self, name: str, given: Sequence[str], options: Options, converted: Sequence[str] | None = None) -> Pair:
        """Both sides of fixture `name`, at the same time; the conversion's arguments may be others."""
        folder = self.root / f"{name}-{len(list(self.root.iterdir()))}"
        scripts = (fixture_data.original(name), fixture_data.golden(name))
        with (
            self.nursery.installed() as server,
            runs.start(scripts[0], given, folder / "original", options, server, original=True) as before,
            runs.start(scripts[1], converted or given, folder / "converted", options, server) as after,
        ):
            pair = Pair(before.wait(), after.wait())
        for run in (pair.original, pair.converted):
            assert run.exit_code == 0, f"{run.folder}: exit codes {run.exit_codes}\n{run.stderr}"
        return pair
