"""What the optimizers are set to, step by step: learning rates, weight decay, momentum, ..."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dp2ddp.verify.compare.finding import TOLERANCE, Finding
from dp2ddp.verify.run.recording import Recording

Groups = Sequence[dict[str, Any]]

_NAMES = {"lr": "learning rate (lr)", "weight_decay": "weight decay"}
_CAUSES = {
    "class": "another optimizer",
    "parameters": "the optimizer is given other parameters than the original's",
    "trained": "a layer is frozen on one side only (`requires_grad`)",
    "the number of parameter groups": "the optimizer is given its parameters in other parameter groups",
}


def first_difference(ours: Recording, theirs: Recording, ranks: int, same_batches: bool) -> Finding | None:
    """The first setting that one run has otherwise, by more than rounding; None if there is none.

    Args:
        ranks: of the converted script.
        same_batches: whether its batches are the original's.
    """
    sides = [{(each.step, each.optimizer): each.groups for each in run.settings} for run in (ours, theirs)]
    until = min(len(ours.steps), len(theirs.steps))
    now: list[dict[int, Groups]] = [{}, {}]
    for step, optimizer in sorted({key for side in sides for key in side if key[0] < until}):
        for current, side in zip(now, sides):
            current[optimizer] = side.get((step, optimizer), current.get(optimizer, ()))
        for group, name, a, b in _differing(now[0][optimizer], now[1][optimizer]):
            what = f"{name} of parameter group {group + 1} of optimizer {optimizer + 1} is {_shown(a)}"
            if name == "class":
                what = f"optimizer {optimizer + 1} is of class {a}"
            return Finding(
                "setting", f"{what}, converted {_shown(b)}", _cause(name, a, b, ranks, same_batches), step + 1
            )
    return None


def _differing(ours: Groups, theirs: Groups) -> Iterator[tuple[int, str, Any, Any]]:
    if len(ours) != len(theirs):
        yield 0, "the number of parameter groups", len(ours), len(theirs)
    for index, (one, other) in enumerate(zip(ours, theirs)):
        for name in [*one, *(name for name in other if name not in one)]:
            a, b = one.get(name), other.get(name)
            if not _is_alike(a, b):
                yield index, name, a, b


def _cause(name: str, original: Any, converted: Any, ranks: int, same_batches: bool) -> str:
    if name in _CAUSES:
        return _CAUSES[name]
    called = _NAMES.get(name, name)
    by = " not"
    if original and all(isinstance(value, (int, float)) for value in (original, converted)):
        factor = converted / original
        if math.isclose(factor, ranks):
            though = ", though the batches are the original's" if same_batches else ""
            return f"the {called} is multiplied by the number of ranks{though}"
        by = f" {factor:.4g} times"
    return f"the {called} is{by} the original's: the optimizer is made, or a schedule changes it, with another value"


def _is_alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_is_alike(one, other) for one, other in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
