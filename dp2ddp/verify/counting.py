"""Numbers with what they count."""

from __future__ import annotations


def counted(number: int, what: str, plural: str = "s") -> str:
    """`1 file`, `1,200 files`; `plural` is what more than one (and none) adds."""
    return f"{number:,} {what}{'' if number == 1 else plural}"
