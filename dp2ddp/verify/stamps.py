"""Folders and files that are named after the clock, or a process: each run gives the same thing another name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath

_DIGIT = re.compile(r"\d")
_FEWEST = 4  # digits: fewer count something (`epoch12`), which must be the same


def renamed(original: Collection[str], converted: Collection[str]) -> dict[str, str]:
    """What of the paths of the converted run's files is called otherwise in the original's.

    Names match that differ in digits alone, the earlier ones first, if both runs have equally many of them: where each
    rank had made one of its own, there would be more.

    Args:
        original, converted: the paths of the files that the runs wrote.

    Returns:
        The original's name for each of the converted run's.
    """
    ours, theirs = _names(original), _names(converted)
    one, other = _by_shape(ours - theirs), _by_shape(theirs - ours)
    shapes = [shape for shape in one if len(one[shape]) == len(other.get(shape, ()))]
    return {new: old for shape in shapes for old, new in zip(sorted(one[shape]), sorted(other[shape]))}


def restoring(names: Mapping[str, str], hide: Callable[[str], str]) -> Callable[[str], str]:
    """`hide`, and after it the original's names in the place of the converted run's."""
    if not names:
        return hide
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return lambda text: pattern.sub(lambda match: names[match.group()], hide(text))


def _names(paths: Collection[str]) -> set[str]:
    return {part for path in paths for part in PurePosixPath(path).parts}


def _by_shape(names: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if len(_DIGIT.findall(name)) >= _FEWEST:
            found[_DIGIT.sub("0", name)].append(name)
    return found
