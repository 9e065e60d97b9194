"""Where a difference begins: the first module whose output, or else whose gradient, isn't the original's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dp2ddp.verify.run.recording import Recording


def first_difference(ours: Recording, theirs: Sequence[Recording], tolerance: float, gradients: bool = True) -> str:
    """In words; empty if none differs, or if the two can't be told apart.

    Args:
        ours: the original's recording, with all replicas.
        theirs: the ranks', each with the replica of its number.
        tolerance: the largest relative difference of sums that counts as agreement.
        gradients: whether gradients are those of the whole batch's loss on both sides; DDP's are N times that.
    """
    for of, words in [("output", "the output of"), ("gradient", "the gradient that comes back to")][: 1 + gradients]:
        there = {_key(each): each for rank in theirs for each in rank.modules if each["of"] == of}
        for each in ours.modules:
            other = there.get(_key(each))
            if each["of"] != of or other is None or other["name"] != each["name"]:
                continue
            if not _alike(each["sums"], other["sums"], tolerance):
                name = f"`{each['name']}`" if each["name"] else "the model"
                return f"first in {words} {name} ({each['module']}) in replica {each['place'][1]}"
    return ""


def _key(event: Any) -> tuple[int, ...]:
    return tuple(event["place"])


def _alike(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], tolerance: float) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(
        abs(a - b) <= tolerance * max(size, other) or (a != a and b != b)
        for (total, size), (there, other) in zip(ours, theirs)
        for a, b in ((total, there), (size, other))
    )
