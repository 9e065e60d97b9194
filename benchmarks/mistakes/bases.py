"""The scripts into whose conversions mistakes are planted: small ones with made-up data, and the fixtures."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

ROOT = Path(__file__).resolve().parents[2]
DATA = "{data}"  # in an argument: the folder of the digits
_TRAIN, _TEST = 96, 48  # digits: two epochs are a dozen steps


@dataclass(frozen=True)
class Base:
    """A script that trains in a second or two.

    Attributes:
        arguments: its own, with `DATA` for the folder of the digits.
        seed: the option that takes its seed.
        loading: how its samples are augmented: "workers" in worker processes, "main" in the process that trains, or ""
            if they aren't.
    """

    path: Path
    arguments: tuple[str, ...] = ()
    seed: str = "--seed"
    loading: str = ""

    @property
    def original(self) -> str:
        """Its text."""
        return self.path.read_text()

    def started_with(self, data: Path, seed: int | None) -> list[str]:
        """Its command line, with a seed unless its own is wanted."""
        seeds = [] if seed is None else [self.seed, str(seed)]
        return [*(each.replace(DATA, str(data)) for each in self.arguments), *seeds]


def _small(name: str, loading: str = "") -> tuple[str, Base]:
    return name, Base(ROOT / "benchmarks" / "scripts" / "small" / f"{name}.py", loading=loading)


def _fixture(name: str, *arguments: str, seed: str = "--seed") -> tuple[str, Base]:
    return name, Base(ROOT / "fixtures" / name / "train.py", ("--data", DATA, *arguments), seed)


BASES: Mapping[str, Base] = MappingProxyType(
    dict(
        [
            _small("accumulate", "workers"),
            _small("denoise", "main"),
            _small("flips", "workers"),
            _small("gan", "main"),
            _small("imagenet", "workers"),
            _small("iterations", "workers"),
            _small("resume", "workers"),
            _small("segment", "workers"),
            _small("signals", "workers"),
            _small("stopping"),
            _small("triplets", "workers"),
            _small("words"),
            _fixture("mnist_amp_accumulate", "--epochs=2"),
            _fixture("mnist_contrastive", "--epochs=2", "--probe_epochs=1", "--batch_size=24", "--print_freq=2"),
            _fixture("mnist_functions", "--epochs=2", "--batch-size=24", "--print-freq=2"),
            _fixture("mnist_gan", "--epochs=1", "--batchSize=24", seed="--manualSeed"),
            _fixture("mnist_iterations", "--max-iter=8", "--val-every=4", "--log-every=2", "--batch-size=8"),
            _fixture("mnist_loss_in_model", "--epochs=2"),
            _fixture("mnist_rnn", "--epochs=2", "--log_interval=2"),
            _fixture("mnist_script", "--epochs=2"),
            _fixture("mnist_files", "--epochs=3", "--batch-size=30"),
            _fixture("mnist_trainer", "--epochs=2"),
            _fixture("mnist_vae", "--epochs=2", "--batch-size=24", "--log-interval=2"),
            _fixture("mnist_weighted", "--epochs=2"),
        ]
    )
)


@cache
def converted(name: str) -> str:
    """What the codemod makes of a base."""
    base = BASES[name]
    conversion = convert_source(base.original, base.path.name, Options())
    assert conversion.changed
    return conversion.new_text


def digits(folder: Path) -> Path:
    """Leave a few of scikit-learn's digits in a folder, where torchvision's MNIST looks for them; returns it."""
    path = ROOT / "fixtures" / "digits.py"
    spec = importlib.util.spec_from_file_location("mistakes_digits", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    everything = folder / "all"
    module.build_from_sklearn(module.raw_folder(everything))
    few: Path = module.subset(everything, folder / "few", _TRAIN, _TEST)
    return few
