"""Folders and files that are named after the clock: each run gives the same thing another name."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath

_DIGITS = re.compile(r"\d+")
# By the number of digits; what follows the seconds is a fraction of them.
_FORMATS = {
    14: ("%Y%m%d%H%M%S",),
    12: ("%y%m%d%H%M%S", "%Y%m%d%H%M"),
    10: ("%m%d%H%M%S",),
    8: ("%d%H%M%S", "%m%d%H%M"),
    6: ("%H%M%S",),
}
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
    ours, theirs = _names(original), _names(converted)
    one = _by_shape({name: ours[name] for name in ours.keys() - theirs.keys()}, lasted)
    other = _by_shape({name: theirs[name] for name in theirs.keys() - ours.keys()}, lasted)
    shapes = [shape for shape in one if len(one[shape]) == len(other.get(shape, ()))]
    return {new: old for shape in shapes for old, new in zip(sorted(one[shape]), sorted(other[shape]))}


def restoring(names: Mapping[str, str], hide: Callable[[str], str]) -> Callable[[str], str]:
    """`hide`, and after it the original's times in the place of the converted run's."""
    if not names:
        return hide
    found = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\d.])(?:{found})(?!\d)")
    return lambda text: pattern.sub(lambda match: names[match.group()], hide(text))


def _names(paths: Mapping[str, Path]) -> dict[str, Path]:
    """Each part of the paths, and a file in it."""
    return {part: file for path, file in paths.items() for part in PurePosixPath(path).parts}


def _by_shape(names: Mapping[str, Path], lasted: timedelta) -> dict[str, set[str]]:
    """The times in names, by what else there is of the name."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, file in names.items():
        written = file.stat().st_mtime
        time = next((text for text in _candidates(name) if _is_time(text, written, lasted)), None)
        if time is not None:
            found[name.replace(time, "<time>")].add(time)
    return found


def _candidates(name: str) -> Iterator[str]:
    """The parts of a name that begin and end with a number, the longest first."""
    spans = [match.span() for match in _DIGITS.finditer(name)]
    parts = [(first[0], last[1]) for first, last in itertools.combinations_with_replacement(spans, 2)]
    yield from (name[start:end] for start, end in sorted(parts, key=lambda part: part[0] - part[1]))


def _is_time(text: str, written: float, lasted: timedelta) -> bool:
    """Whether a text tells a time between the run's start and the writing of a file."""
    digits = "".join(_DIGITS.findall(text))
    for zone in (None, timezone.utc):
        end = datetime.fromtimestamp(written, zone).replace(tzinfo=None)
        moments = list(_moments(digits, end))
        if any(end - lasted - _SLACK <= moment <= end + _SLACK for moment in moments):
            return True
    return False


def _moments(digits: str, near: datetime) -> Iterator[datetime]:
    """The times that digits may tell; what they leave out of the date is that of `near`."""
    if len(digits) >= _EPOCH:
        yield datetime.fromtimestamp(int(digits[:_EPOCH]))
    for length, formats in _FORMATS.items():
        if len(digits) == length or (length == max(_FORMATS) and len(digits) > length):
            yield from (moment for form in formats if (moment := _read(digits[:length], form, near)) is not None)


def _read(digits: str, form: str, near: datetime) -> datetime | None:
    try:
        told = datetime.strptime(digits, form)
        return told.replace(
            year=told.year if "%y" in form.lower() else near.year,
            month=told.month if "%m" in form else near.month,
            day=told.day if "%d" in form else near.day,
        )
    except ValueError:  # no such day or hour
        return None
