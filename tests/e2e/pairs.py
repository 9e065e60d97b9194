"""Runs of a fixture's original and of its conversion side by side, each started once a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import fixture_data
from nursery import Nursery

from dp2ddp.verify.compare.comparison import Comparison, compare
from dp2ddp.verify.run import runs
from dp2ddp.verify.run.runs import Options, Run


@dataclass(frozen=True)
class Pair:
    """Folders of a finished original and converted run."""

    original: Run
    converted: Run

    @cached_property
    def compared(self) -> Comparison:
        return compare(self.original, self.converted)

    def checked(self) -> Pair:
        """This pair, if both runs ended well."""
        for run in (self.original, self.converted):
            assert run.exit_code == 0, f"{run.folder}: exit codes {run.exit_codes}\n{run.stderr}"
        return self


@dataclass
class Pairs:
    """Starts pairs below `root` and keeps them."""

    root: Path
    nursery: Nursery
    _kept: dict[tuple[object, ...], Pair] = field(default_factory=dict)

    def run(self, name: str, arguments: Sequence[str], options: Options) -> Pair:
        """Both sides of fixture `name` with the same arguments; they run at the same time."""
        key = (name, tuple(arguments), options)
        if key not in self._kept:
            self._kept[key] = self._start(name, (arguments, arguments), options)
        return self._kept[key].checked()

    def cross(self, name: str, arguments: tuple[Sequence[str], Sequence[str]], options: Options) -> Pair:
        """Both sides of fixture `name`, with arguments for the original and for the conversion."""
        return self._start(name, arguments, options).checked()

    def _start(self, name: str, arguments: tuple[Sequence[str], Sequence[str]], options: Options) -> Pair:
        folder = self.root / f"{name}-{len(list(self.root.iterdir()))}"
        scripts = (fixture_data.original(name), fixture_data.golden(name))
        with (
            self.nursery.installed() as server,
            runs.start(scripts[0], arguments[0], folder / "original", options, server, original=True) as before,
            runs.start(scripts[1], arguments[1], folder / "converted", options, server) as after,
        ):
            return Pair(before.wait(), after.wait())
