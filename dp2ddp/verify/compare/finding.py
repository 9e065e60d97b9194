"""What a comparison found: a kind, words, a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: The largest relative difference of numbers that counts as agreement.
TOLERANCE = 1e-6
#: Kinds of findings that rounding may explain, and random numbers that other rows draw.
NUMBERS = frozenset({"input", "buffer", "output", "loss", "gradient", "parameter", "printed", "file"})
#: Kinds that nothing excuses which an original doesn't do twice.
STRUCTURE = frozenset({"exit", "diverged", "keys", "calls", "written", "prints", "missing"})
_SURE = 1e-2  # no factor that all numbers have is rounding if it is further from 1
_MOST = 200  # characters that are shown of a value


@dataclass(frozen=True)
class Finding:
    """Something in which the runs differ.

    Args:
        kind: one word for programs: start, batch, shuffle, count, calls, diverged, mode, input, buffer, output,
            loss, kept, gradient, setting, apart, parameter, exit, written, prints, printed, text, missing, keys,
            file.
        what: what differs, with both values.
        cause: the cause, where a single one fits; empty otherwise.
        step: the optimizer step (from 1) at which; None where training is the same.
        parameter: the parameter that differs most.
        size: the relative difference; infinite for what rounding can't explain.
        at: the original's line where it is seen, as `train.py:12`; None where none is known.
        factor: what all the numbers are as a multiple of the original's, if they are.
    """

    kind: str
    what: str
    cause: str = ""
    step: int | None = None
    parameter: str | None = None
    size: float = math.inf
    at: str | None = None
    factor: float | None = None

    @property
    def may_be_rounding(self) -> bool:
        """Whether it is a number that rounding may have moved."""
        return self.kind in NUMBERS and (self.factor is None or abs(self.factor - 1) < _SURE)

    def __str__(self) -> str:
        at = f"step {self.step}: " if self.step is not None else ""
        return f"{at}{self.what}" + (f"; {self.cause}" if self.cause else "")


def shown(value: object) -> str:
    """A value as text, cut where it is long."""
    text = f"{value:.6g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def size_shown(size: float) -> str:
    """A relative difference, in words."""
    return "" if math.isinf(size) else f" differs by {size:.1e}"


def factor_of(original: float, converted: float) -> float | None:
    """What one number is as a multiple of another, where that says something."""
    factor = converted / original if original else math.nan
    return factor if math.isfinite(factor) and abs(factor - 1) > 1e-3 else None


def times(what: str, factor: float | None) -> str:
    """What is `factor` times what it was, in words; empty where there is no factor."""
    return f"{what} {factor:.4g} times the original's" if factor else ""


def relative(a: float, b: float, least: float = 0.0) -> float:
    """The difference of two numbers, relative to the larger one, or `least`; infinite where one alone is no number."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    size = abs(a - b) / max(abs(a), abs(b), least)
    return size if math.isfinite(size) else math.inf
