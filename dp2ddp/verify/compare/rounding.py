"""How much rounding may do: measured, by the original beside itself with parameters that are off by a unit of rounding.

As TTrace does (arXiv 2506.09280): what a unit of rounding at the start makes of a step as well is no mistake; what is
larger by far is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp2ddp.verify.compare.comparison import Comparison

_TIMES = 10.0  # rounding goes another way each time, and comes with each step


@dataclass(frozen=True)
class Rounding:
    """The largest relative differences that are rounding's.

    Attributes:
        steps: of parameters, after each optimizer step.
        losses: of each loss given to `backward`.
        gradients: of the norm of all gradients, at each step.
        lines: of numbers in printed lines, by the line.
        files: of what is saved, by file and place.
    """

    steps: Sequence[float] = ()
    losses: Sequence[float] = ()
    gradients: Sequence[float] = ()
    lines: Mapping[int, float] = field(default_factory=dict)
    files: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """Of parameters, after the last step."""
        return self.steps[-1] if self.steps else 0.0


def measured(twice: Comparison) -> Rounding:
    """What rounding may do.

    Args:
        twice: the original, and the original that began a unit of rounding elsewhere.
    """
    pairs = zip(*(run.steps for run in twice.recordings[:2]))
    norms = [[math.hypot(*(each for each in step.gradients if each is not None)) for step in pair] for pair in pairs]
    return Rounding(
        _grown(each.relative for each in twice.steps),
        _grown(twice.losses),
        _grown(abs(a - b) / max(a, b) if a != b else 0.0 for a, b in norms),
        {line.line: _TIMES * line.relative for line in twice.lines},
        {(file.file, file.where): _TIMES * file.relative for file in twice.files},
    )


def excused(may: Rounding, twice: Comparison) -> Rounding:
    """`may`, and any difference in the lines and files that the original doesn't write twice."""
    lines = {line.line: math.inf for line in twice.lines}
    files = {(file.file, file.where): math.inf for file in twice.files}
    return replace(may, lines={**may.lines, **lines}, files={**may.files, **files})


def allowed_at(sizes: Sequence[float], number: int) -> float:
    """The entry of this number (from 0); the last one behind them, and 0 where there is none."""
    return sizes[min(number, len(sizes) - 1)] if sizes else 0.0


def _grown(sizes: Iterable[float]) -> Sequence[float]:
    """What grew to something may be that large later on, too."""
    return [_TIMES * size for size in accumulate(sizes, max)]
