"""In which precision two sides are compared: float32 where that can tell, float64 where rounding may hide a mistake."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

from dp2ddp.verify.compare import rounding
from dp2ddp.verify.compare.causes import explain
from dp2ddp.verify.compare.finding import NUMBERS, Finding
from dp2ddp.verify.compare.recordings import Comparison
from dp2ddp.verify.request import Request
from dp2ddp.verify.run.options import Options
from dp2ddp.verify.verdict import CouldNotRun

_COARSE = 1e-3  # a tolerance from which printed numbers are taken by it, and not by their last digit

Compared = tuple[Options, Comparison, list[Finding]]


class Precision:
    """Compares, if need be again in another precision, and notes which and why.

    Args:
        once: runs both sides and compares them with a tolerance.
        perturbed: runs the original beside itself, a unit of rounding elsewhere at the start, as far as was compared.
        notes: where it is noted.
    """

    def __init__(
        self,
        request: Request,
        once: Callable[[Options, float], Compared],
        perturbed: Callable[[Compared], Comparison],
        notes: list[str],
    ) -> None:
        self.request = request
        self._once = once
        self._perturbed = perturbed
        self.notes = notes

    def _options(self, float64: bool = False) -> Options:
        return replace(self.request.options, float64=float64)

    def compared(self) -> Compared:
        """Compare in the precision that can tell: float32 on up to two ranks, float64 on more, or where it differs."""
        many = self.request.options.replicas > 2
        if self.request.options.cuda:
            self.notes.append("on CUDA, in the script's own precision")
            return self._beyond_rounding(self._once(self._options(), self.request.tolerance))
        if many:
            why = "sums over three and more ranks round differently in float32"
            found = self._in_float64(why)
            return found or self._beyond_rounding(self._once(self._options(), self.request.tolerance))
        first = self._once(self._options(), self.request.tolerance)
        mixed = first[1].recordings[0].mixed
        own = f"float32 and {mixed}" if mixed else "float32"
        # Any size may be rounding: Adam makes a whole step of the sign of a gradient near 0.
        if not _may_be_rounding(first):
            self.notes.append(f"compared in {own}")
            return first
        largest = max(finding.size for finding in first[2])
        by = "" if math.isinf(largest) else f" by {largest:.0e}"
        why = f"in {own} they differ{by}, which may be rounding"
        found = self._in_float64(why)
        if found is None:
            return self._beyond_rounding(first)
        if found[2] and _at_once(first[1]):  # in float64 a script draws other numbers, and trains otherwise
            self.notes.append(f"shown is {own}, where both had the same bits up to the first difference")
            return first
        return found

    def _in_float64(self, why: str) -> Compared | None:
        """Compare in float64; None where the script doesn't compute in it."""
        try:
            found = self._once(self._options(float64=True), self.request.tolerance)
        except CouldNotRun as stopped:
            self.notes.append(f"in float64 the {stopped.failure.side} script fails ({stopped.failure.reason})")
            return None
        slots = [slot for step in found[1].recordings[0].steps[:1] for slot in step.slots]
        if any(slot.dtype.is_floating_point and slot.dtype.itemsize < 8 for slot in slots):
            self.notes.append("the script makes its parameters less precise than float64 itself")
            return None
        self.notes.append(f"compared in float64: {why}")
        if found[1].recordings[0].mixed:
            more = " (two ranks are compared in half precision first)" if self.request.options.replicas > 2 else ""
            self.notes.append(f"autocast casts nothing in float64{more}")
        return found

    def _beyond_rounding(self, first: Compared) -> Compared:
        """In how far `first` differs by more than a unit of rounding at the start can grow to in the original."""
        if not _may_be_rounding(first):
            return first
        try:
            may = rounding.measured(self._perturbed(first))
        except CouldNotRun as stopped:
            self.notes.append(f"how much rounding may do isn't known: {stopped.failure.reason}")
            return first
        self.notes.append(
            f"compared in the script's own precision: differences up to {may.largest:.0e} are rounding's, as the "
            "original shows that begins a unit of rounding elsewhere"
        )
        comparison = replace(first[1], rounding=may)
        return first[0], comparison, beyond(explain(comparison), comparison.tolerance)


def _may_be_rounding(compared: Compared) -> bool:
    """Whether the root of all that differs is a number."""
    return bool(compared[2]) and compared[2][0].kind in NUMBERS


def _at_once(comparison: Comparison) -> bool:
    """Whether the first difference in training came after steps of the same bits."""
    first = comparison.first
    return first is not None and not any(step.relative for step in comparison.steps[: first.step - 1])


def beyond(findings: Sequence[Finding], tolerance: float) -> list[Finding]:
    """Without what a coarse `tolerance` takes for rounding in printed numbers, too."""
    if tolerance < _COARSE:
        return list(findings)
    return [finding for finding in findings if finding.size > tolerance]
