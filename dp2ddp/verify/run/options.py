"""How both sides of a comparison run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dp2ddp.verify.start.keeping import THREADS


@dataclass(frozen=True)
class Options:
    """How both sides of a comparison run.

    Args:
        replicas: N: DataParallel's replicas in the original, ranks of the converted script.
        steps: end both after this many optimizer steps; None: run to the end.
        float64: make float64 torch's default dtype.
        cuda: use the machine's CUDA devices.
        pretended: use N pretend CUDA devices. Without either the CPU stands in for max(N, 2) devices.
        seed: seeds the generators before the scripts start, for those that don't.
        threads: CPU threads a process.
        synthetic: torchvision's data sets get so many made-up training samples; None: they are the real ones.
        moved: folders of the user's, and what stands for them in this run: `PYTHONPATH` leads to these.
        foreign: the converted script isn't made for this project's runtime: it is started as torchrun starts scripts.
        perturbed: begin with parameters that are off by a unit of rounding.
        modules: record what the modules give out in this optimizer step (from 1); None: in none.
        timeout: seconds after which a run is ended.
        auto: end both at the same step once what was seen of them leaves no doubt.
        gate: where the runs are told how far they may go (see `gate`); None: to their end.
    """

    replicas: int = 2
    steps: int | None = None
    float64: bool = False
    cuda: bool = False
    pretended: bool = False
    seed: int = 0
    threads: int = THREADS
    synthetic: int | None = None
    moved: tuple[tuple[Path, Path], ...] = ()
    foreign: bool = False
    perturbed: bool = False
    modules: int | None = None
    timeout: float = 600.0
    auto: bool = False
    gate: Path | None = None

    @property
    def gpus(self) -> str:
        """What the replicas run on: "GPUs", or "pretend GPUs"; empty where it is the CPU."""
        return "pretend GPUs" if self.pretended else "GPUs" if self.cuda else ""
