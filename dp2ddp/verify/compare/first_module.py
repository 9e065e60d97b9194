"""Where a difference begins: the first module whose output, or else whose gradient, isn't the original's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dp2ddp.verify.compare import evidence
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
            if evidence.sums_apart(each["sums"], other["sums"]) > tolerance:
                name = f"`{each['name']}`" if each["name"] else "the model"
                several = len({one["model"] for one in ours.modules}) > 1 and each["name"]
                whose = f" of {each['model']}" if several else ""
                return f"first in {words} {name} ({each['module']}){whose} in replica {each['place'][1]}"
    return ""


def _key(event: Any) -> tuple[int, ...]:
    return tuple(event["place"])
