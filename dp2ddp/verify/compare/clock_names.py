"""Folders and files that are named after the clock: each run gives the same thing another name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath

_NUMBERS = re.compile(r"\d+(?:[-_:.T]\d+)*")
_LEAST = 6  # digits of a time
_MINUTE = timedelta(minutes=1)
_SLACK = 2 * _MINUTE  # clocks of file systems may lag


def renamed(
    original: Mapping[str, Path], converted: Mapping[str, Path], lasted: timedelta = timedelta()
) -> dict[str, str]:
    """What of the paths of the converted run's files is called otherwise in the original's.

    Names match that differ in numbers alone, where these have a minute in them in which the run was under way; the
    earlier ones first, if both runs have equally many: where each rank had made one of its own, there would be more.

    Args:
        original, converted: the files that the runs wrote, by the paths that the scripts know.
        lasted: how long the runs took.

    Returns:
        The original's time, as it is written there, for each of the converted run's.
    """
    sides = [
        {part: file for path, file in paths.items() for part in PurePosixPath(path).parts}
        for paths in (original, converted)
    ]
    only = [{name: side[name] for name in side.keys() - other.keys()} for side, other in (sides, sides[::-1])]
    one, other = (_by_shape(names, lasted) for names in only)
    shapes = [shape for shape in one if len(one[shape]) == len(other.get(shape, ()))]
    return {new: old for shape in shapes for old, new in zip(sorted(one[shape]), sorted(other[shape]))}


def restoring(names: Mapping[str, str], hide: Callable[[str], str]) -> Callable[[str], str]:
    """`hide`, and after it the original's times in the place of the converted run's."""
    if not names:
        return hide
    found = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\d.])(?:{found})(?!\d)")
    return lambda text: pattern.sub(lambda match: names[match.group()], hide(text))


def _by_shape(names: Mapping[str, Path], lasted: timedelta) -> dict[str, set[str]]:
    """The times in names, by what else there is of the name."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, file in names.items():
        end = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc)
        minutes = set(_minutes(end - lasted - _SLACK, end + _SLACK))
        time = next((time for each in _NUMBERS.findall(name) if (time := _time_in(each, minutes))), None)
        if time is not None:
            found[name.replace(time, "<time>")].add(time)
    return found


def _minutes(begin: datetime, end: datetime) -> Iterator[str]:
    """How the minutes from `begin` to `end` are written, here and in UTC: hour and minute, or seconds since 1970."""
    while begin <= end:
        yield from (f"{begin:%H%M}", f"{begin.astimezone():%H%M}", f"{begin.timestamp() // 100:.0f}")
        begin += _MINUTE


def _time_in(numbers: str, minutes: set[str]) -> str | None:
    """The shortest end of these numbers, of at least `_LEAST` digits, that has one of `minutes` in it."""
    for start in reversed([match.start() for match in re.finditer(r"\d+", numbers)]):
        digits = re.sub(r"\D", "", numbers[start:])
        if len(digits) >= _LEAST and any(minute in digits for minute in minutes):
            return numbers[start:]
    return None
