"""All mistakes, by what was touched: one module for each, which has `MISTAKES`."""

from __future__ import annotations

from ..planted import Mistake
from . import batches, losses, models, optimizers, output, randomness, samples, schedules

MISTAKES: tuple[Mistake, ...] = tuple(
    mistake
    for module in (optimizers, schedules, batches, samples, models, losses, randomness, output)
    for mistake in module.MISTAKES
)
