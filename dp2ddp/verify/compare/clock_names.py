"""Folders and files that are named after the clock: each run gives the same thing another name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath

_DIGITS = re.compile(r"\d+")
# What is left out of a date is the writing's; what follows the seconds is a fraction of them.
_FORMATS = ("%Y%m%d%H%M%S", "%y%m%d%H%M%S", "%Y%m%d%H%M", "%m%d%H%M%S", "%m%d%H%M", "%d%H%M%S", "%H%M%S")
_EPOCH = 10  # digits of the seconds since 1970
_SLACK = timedelta(minutes=2)  # a minute is left out of some names; clocks of file systems may lag


def renamed(
    original: Mapping[str, Path], converted: Mapping[str, Path], lasted: timedelta = timedelta()
) -> dict[str, str]:
    """What of the paths of the converted run's files is called otherwise in the original's.

    Names match that differ in digits alone, where these are a time at which the run was under way; the earlier ones
    first, if both runs have equally many of them: where each rank had made one of its own, there would be more.

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
        written = file.stat().st_mtime
        time = next((text for text in _spans(name) if _is_time(text, written, lasted)), None)
        if time is not None:
            found[name.replace(time, "<time>")].add(time)
    return found


def _spans(name: str) -> Iterator[str]:
    """The parts of a name that begin and end with a number, the longest first."""
    spans = [match.span() for match in _DIGITS.finditer(name)]
    parts = [(first[0], last[1]) for number, first in enumerate(spans) for last in spans[number:]]
    yield from (name[start:end] for start, end in sorted(parts, key=lambda part: part[0] - part[1]))


def _is_time(text: str, written: float, lasted: timedelta) -> bool:
    """Whether a text tells a time between the run's start and the writing of a file, here or in UTC."""
    digits = "".join(_DIGITS.findall(text))
    for end in (datetime.fromtimestamp(written), datetime.fromtimestamp(written, timezone.utc).replace(tzinfo=None)):
        told = [moment for form in _FORMATS if (moment := _read(digits, form, end)) is not None]
        if len(digits) >= _EPOCH:
            told.append(datetime.fromtimestamp(int(digits[:_EPOCH])))
        if any(end - lasted - _SLACK <= moment <= end + _SLACK for moment in told):
            return True
    return False


def _read(digits: str, form: str, near: datetime) -> datetime | None:
    whole = len(datetime.strftime(near, form))
    given = {"year": "y" in form.lower(), "month": "%m" in form, "day": "%d" in form}
    try:
        told = datetime.strptime(digits[:whole] if form == _FORMATS[0] else digits, form)
        return told.replace(**{name: getattr(near, name) for name, is_told in given.items() if not is_told})
    except ValueError:  # no such day or hour
        return None
