"""What is asked of a verification. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.verify.run.options import Options


@dataclass(frozen=True)
class Request:
    """What to verify.

    Args:
        script: the original.
        arguments: the script's own.
        converted: the converted script; None: convert the original.
        options: how both run. `float64` is chosen here.
        tolerance: the largest relative difference that counts as agreement.
        folder: where to run; None: a temporary folder that is gone afterwards.
        keep: leave the parameters of all steps in the recordings.
        allow_ddp: convert a script that can also set up DistributedDataParallel itself.
    """

    script: Path
    arguments: Sequence[str] = ()
    converted: Path | None = None
    options: Options = field(default_factory=Options)
    tolerance: float = 1e-6
    folder: Path | None = None
    keep: bool = False
    allow_ddp: bool = False
