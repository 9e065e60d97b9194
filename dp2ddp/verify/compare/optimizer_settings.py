"""What the optimizers are set to, step by step: learning rates, weight decay, momentum, ..."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dp2ddp.verify.run.recording import Recording

Groups = Sequence[dict[str, Any]]

_NAMES = {"lr": "learning rate (lr)", "weight_decay": "weight decay"}
_CAUSES = {
    "class": "another optimizer",
    "parameters": "the optimizer is given other parameters than the original's",
    "trained": "a layer is frozen on one side only (`requires_grad`)",
    "the number of parameter groups": "the optimizer is given its parameters in other parameter groups",
}


@dataclass(frozen=True)
class SettingDifference:
    """The first setting that isn't the original's: the step (from 1) that takes it, and whose it is."""

    step: int
    optimizer: int
    group: int
    name: str
    original: Any
    converted: Any

    @property
    def factor(self) -> float | None:
        """The converted script's value as a multiple of the original's, if they are numbers."""
        pair = self.original, self.converted
        if not all(isinstance(value, (int, float)) for value in pair) or not self.original:
            return None
        return float(self.converted / self.original)

    def cause(self, ranks: int, same_batches: bool) -> str:
        """What may be behind it, on so many ranks."""
        name = _NAMES.get(self.name, self.name)
        if self.name in _CAUSES:
            return _CAUSES[self.name]
        if self.factor is not None and math.isclose(self.factor, ranks):
            return f"the {name} is multiplied by the number of ranks" + (
                ", though the batches are the original's" if same_batches else ""
            )
        by = f" {self.factor:.4g} times" if self.factor is not None else " not"
        return f"the {name} is{by} the original's: the optimizer is made, or a schedule changes it, with another value"

    def __str__(self) -> str:
        if self.name == "class":
            return f"optimizer {self.optimizer + 1} is of class {self.original}, converted {self.converted}"
        whose = f"parameter group {self.group + 1} of optimizer {self.optimizer + 1}"
        return f"{self.name} of {whose} is {_shown(self.original)}, converted {_shown(self.converted)}"


def first_difference(ours: Recording, theirs: Recording, tolerance: float) -> SettingDifference | None:
    """The first setting that one run has otherwise, by more than `tolerance` (relative); None if there is none."""
    sides = [{(each.step, each.optimizer): each.groups for each in run.settings} for run in (ours, theirs)]
    until = min(len(ours.steps), len(theirs.steps))
    now: list[dict[int, Groups]] = [{}, {}]
    for step, which in sorted({key for side in sides for key in side if key[0] < until}):
        for current, side in zip(now, sides):
            current[which] = side.get((step, which), current.get(which, ()))
        for group, name, a, b in _differing(now[0][which], now[1][which], tolerance):
            return SettingDifference(step + 1, which, group, name, a, b)
    return None


def _differing(ours: Groups, theirs: Groups, tolerance: float) -> Iterator[tuple[int, str, Any, Any]]:
    if len(ours) != len(theirs):
        yield 0, "the number of parameter groups", len(ours), len(theirs)
    for index, (one, other) in enumerate(zip(ours, theirs)):
        for name in [*one, *(name for name in other if name not in one)]:
            a, b = one.get(name), other.get(name)
            if not _alike(a, b, tolerance):
                yield index, name, a, b


def _alike(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_alike(one, other, tolerance) for one, other in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
