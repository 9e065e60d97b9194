"""The fixture scripts and the digits that tests train them on."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from dp2ddp.rules import Options

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"
MNIST = ROOT.parent / "shared" / "mnist"  # 10,000 of MNIST's digits, where the tests' machine has them

# How a fixture is converted, where that isn't the default: it can set up DDP itself.
OPTIONS = dict.fromkeys(("mnist_own_ddp", "mnist_torchrun"), Options(allow_ddp=True))


def names() -> list[str]:
    """The fixtures that are one script."""
    return sorted(path.parent.name for path in FIXTURES.glob("*/train_ddp.py"))


def original(name: str) -> Path:
    """The DataParallel script of a fixture."""
    return FIXTURES / name / "train.py"


def golden(name: str) -> Path:
    """Its conversion, as committed."""
    return FIXTURES / name / "train_ddp.py"


def load_module(name: str) -> ModuleType:
    """A module of the fixtures' folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


digits = load_module("digits")


def mnist_source() -> Path | None:
    """A folder with MNIST's files: `DP2DDP_MNIST`, or the one beside the checkout; None where there is neither."""
    given = os.environ.get("DP2DDP_MNIST")
    source = Path(given) if given else MNIST
    return source if source.is_dir() else None


def prepare_real(root: Path) -> Path:
    """MNIST's digits under `root` where this machine has them, else scikit-learn's; never a download."""
    source = mnist_source()
    if source is None:
        return prepare_sklearn(root)
    prepared: Path = digits.prepare(root, source)
    return prepared


def prepare_sklearn(root: Path) -> Path:
    """scikit-learn's digits under `root`: 1,438 to train on, 359 to test."""
    digits.build_from_sklearn(digits.raw_folder(root))
    return root
