"""In which precision two sides are compared: float32 where that can tell, float64 where rounding may hide a mistake."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

from dp2ddp.verify.compare.causes import NUMBERS, Finding, explain
from dp2ddp.verify.compare.recordings import Comparison
from dp2ddp.verify.request import Request
from dp2ddp.verify.run.options import Options
from dp2ddp.verify.verdict import CouldNotRun

ROUNDING = 1e-3  # float32's rounding may grow to this; what is larger is not rounding

Compared = tuple[Options, Comparison, list[Finding]]


class Precision:
    """Compares, if need be again in another precision, and notes which and why.

    Args:
        once: runs both sides and compares them with a tolerance.
        notes: where it is noted.
    """

    def __init__(self, request: Request, once: Callable[[Options, float], Compared], notes: list[str]) -> None:
        self.request = request
        self._once = once
        self.notes = notes

    def _options(self, float64: bool = False) -> Options:
        return replace(self.request.options, float64=float64)

    def compared(self) -> Compared:
        """Compare in the precision that can tell: float32 on up to two ranks, float64 on more, or where it differs."""
        many = self.request.options.replicas > 2
        if self.request.options.cuda:
            self.notes.append(f"on CUDA, in the script's own precision: differences up to {ROUNDING:g} are rounding's")
            return self._once(self._options(), max(self.request.tolerance, ROUNDING))
        if many:
            why = "sums over three and more ranks round differently in float32"
            return self._in_float64(why) or self._in_float32_only(None)
        first = self._once(self._options(), self.request.tolerance)
        mixed = first[1].recordings[0].mixed
        own = f"float32 and {mixed}" if mixed else "float32"
        # Any size may be rounding: Adam makes a whole step of the sign of a gradient near 0.
        if not first[2] or any(finding.kind not in NUMBERS for finding in first[2]):
            self.notes.append(f"compared in {own}")
            return first
        largest = max(finding.size for finding in first[2])
        by = "" if math.isinf(largest) else f" by {largest:.0e}"
        why = f"in {own} they differ{by}, which may be rounding"
        return self._in_float64(why) or self._in_float32_only(first)

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

    def _in_float32_only(self, first: Compared | None) -> Compared:
        tolerance = max(self.request.tolerance, ROUNDING)
        self.notes.append(f"compared in float32: differences up to {tolerance:g} are taken for rounding")
        if first is None:
            return self._once(self._options(), tolerance)
        comparison = replace(first[1], tolerance=tolerance)
        return first[0], comparison, beyond(explain(comparison), tolerance)


def beyond(findings: Sequence[Finding], tolerance: float) -> list[Finding]:
    """Without what a coarse `tolerance` takes for rounding in printed numbers, too."""
    if tolerance < ROUNDING:
        return list(findings)
    return [finding for finding in findings if finding.size > tolerance]
