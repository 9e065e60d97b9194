"""What is asked of a verification, and of each of its processes. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Options:
    """How both sides of a comparison run.

    Args:
        replicas: N: DataParallel's replicas in the original, ranks of the converted script.
        steps: end both after this many optimizer steps; None: run to the end.
        float64: make float64 torch's default dtype.
        cuda: use the machine's CUDA devices. Otherwise the CPU stands in for max(N, 2) of them.
        synthetic: torchvision's data sets get so many made-up training samples; None: they are the real ones.
        foreign: the converted script isn't made for this project's runtime: it is started as torchrun starts scripts.
        one_gpu: the original trains as on one GPU: the model runs on the whole batch.
        timeout: seconds after which a run is ended.
    """

    replicas: int = 2
    steps: int | None = None
    float64: bool = False
    cuda: bool = False
    synthetic: int | None = None
    foreign: bool = False
    one_gpu: bool = False
    timeout: float = 600.0


@dataclass(frozen=True)
class Task:
    """What one process runs and records: a rank's script, or the original, in a run whose folder is `folder`."""

    folder: str
    script: str
    arguments: Sequence[str]
    options: Options
    original: bool = False
    rank: int = 0

    def as_text(self) -> str:
        """In one line."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Task:
        """What `as_text` has made."""
        told = json.loads(text)
        return cls(**{**told, "options": Options(**told["options"])})
