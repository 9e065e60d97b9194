"""What a comparison found: a kind, words, a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: The largest relative difference of parameters, losses and saved numbers that counts as agreement.
TOLERANCE = 1e-6
#: Kinds of findings: numbers, which rounding and random numbers may change; and what neither ever changes.
NUMBERS = frozenset({"loss", "update", "scale", "gradient", "printed", "file", "buffer", "input"})
STRUCTURE = frozenset({"exit", "keys", "left", "unwrapped", "sync_bn", "written", "prints", "missing"})


@dataclass(frozen=True)
class Finding:
    """Something in which the runs differ.

    Args:
        kind: one word for programs: exit, count, left, unwrapped, sync_bn, written, prints, start, data, batch,
            shuffle, passed, mode, kept, state, setting, input, buffer, draw, apart, scale, loss, update, gradient,
            printed, keys, missing, file.
        what: what differs, with numbers.
        cause: the likely cause; empty where nothing is known.
        step: the optimizer step (from 1) at which; None where it has none.
        parameter: the parameter that differs most.
        size: the relative difference; infinite for what rounding can't explain.
        at: the original's line where it is seen, as `train.py:12`; None where none is known.
    """

    kind: str
    what: str
    cause: str = ""
    step: int | None = None
    parameter: str | None = None
    size: float = math.inf
    at: str | None = None

    def __str__(self) -> str:
        at = f"step {self.step}: " if self.step is not None else ""
        return f"{at}{self.what}" + (f"; {self.cause}" if self.cause else "")
