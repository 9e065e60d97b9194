"""Comparing what ranks have seen: among each other bit for bit, with the oracle but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Relative to the largest number of a tensor, and absolute.
TOLERANCES = {"float64": (1e-9, 1e-11), "float32": (1e-4, 1e-6), "bfloat16": (5e-2, 1e-2)}


def first_difference(ranks: Sequence[Sequence[Any]], wanted: Sequence[Any], precision: str) -> str | None:
    """Where ranks differ from rank 0, or rank 0 from what the oracle has; None if nowhere.

    Args:
        ranks: what each rank has seen: labels and values.
        wanted: what the oracle has seen.
        precision: of the narrowest numbers that they have.
    """
    for rank, notes in enumerate(ranks[1:], 1):
        if found := _compare(notes, ranks[0], None):
            return f"rank {rank} and rank 0: {found}"
    found = _compare(ranks[0], wanted, TOLERANCES[precision])
    return f"ranks and oracle: {found}" if found else None


def _compare(got: Sequence[Any], wanted: Sequence[Any], tolerance: tuple[float, float] | None) -> str | None:
    for (label, value), (other, expected) in zip(got, wanted):
        if label != other:
            return f"{label}: another label: {other}"
        if not _alike(value, expected, tolerance):
            return f"{label}: {_text(value)}, not {_text(expected)}"
    return f"{len(got)} values, not {len(wanted)}" if len(got) != len(wanted) else None


def _alike(value: Any, expected: Any, tolerance: tuple[float, float] | None) -> bool:
    if not isinstance(value, tuple) or not isinstance(expected, tuple):
        return bool(type(value) is type(expected) and value == expected)
    (kind, numbers), (other, others) = value, expected
    if kind != other or numbers.shape != others.shape or numbers.dtype != others.dtype:
        return False
    if tolerance is None or numbers.dtype.kind not in "fc":
        return bool(numbers.tobytes() == others.tobytes())
    finite = np.abs(others[np.isfinite(others)])
    relative, absolute = tolerance
    largest = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(numbers, others, rtol=0, atol=relative * largest + absolute, equal_nan=True))


def _text(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    kind, numbers = value
    shown = np.array2string(numbers.reshape(-1)[:5], precision=12, separator=" ")
    return f"{kind}{list(numbers.shape)} {shown}".replace("\n", "")
