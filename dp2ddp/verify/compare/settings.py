"""What the optimizers are set to, step by step: learning rates, weight decay, momentum, ..."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dp2ddp.verify.compare.finding import TOLERANCE, Finding, factor_of, shown, times
from dp2ddp.verify.run.recording import Recording

Groups = Sequence[dict[str, Any]]

_CALLED = {"lr": "lr (learning rate)", "weight_decay": "weight decay", "class": "the class"}
_CAUSES = {
    "class": "another optimizer",
    "parameters": "the optimizer is given other parameters",
    "trained": "a layer is frozen on one side only (`requires_grad`)",
}


def differences(ours: Recording, theirs: Recording, ranks: int) -> Iterator[Finding]:
    """The first setting that one run has otherwise.

    Args:
        ranks: of the converted script.
    """
    sides = [{(each.step, each.optimizer): each.groups for each in run.settings} for run in (ours, theirs)]
    until = min(len(ours.steps), len(theirs.steps))
    now: list[dict[int, Groups]] = [{}, {}]
    for step, optimizer in sorted({key for side in sides for key in side if key[0] < until}):
        for current, side in zip(now, sides):
            current[optimizer] = side.get((step, optimizer), current.get(optimizer, ()))
        for group, name, a, b in _differing(now[0][optimizer], now[1][optimizer]):
            what = (
                f"{_CALLED.get(name, name)} of parameter group {group + 1} of optimizer {optimizer + 1} is {shown(a)}"
            )
            yield Finding("setting", f"{what}, converted {shown(b)}", _cause(name, a, b, ranks), step + 1)
            return


def _differing(ours: Groups, theirs: Groups) -> Iterator[tuple[int, str, Any, Any]]:
    if not (ours and theirs):  # one hasn't made a step yet
        return
    if len(ours) != len(theirs):
        yield 0, "the number of parameter groups", len(ours), len(theirs)
    for index, (one, other) in enumerate(zip(ours, theirs)):
        for name in [*one, *(name for name in other if name not in one)]:
            a, b = one.get(name), other.get(name)
            if not _is_alike(a, b):
                yield index, name, a, b


def _cause(name: str, original: Any, converted: Any, ranks: int) -> str:
    if name in _CAUSES or not all(type(value) in (int, float) for value in (original, converted)):
        return _CAUSES.get(name, "")
    factor = factor_of(original, converted)
    if factor is not None and ranks > 1 and math.isclose(factor, ranks):
        return "it is multiplied by the number of ranks"
    return f"it is {times(factor)}" if factor else ""


def _is_alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_is_alike(one, other) for one, other in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
