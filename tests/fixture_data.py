"""The fixture scripts and the digits that tests train them on."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from dp2ddp.rules import Options

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"

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


_spec: Any = importlib.util.spec_from_file_location("digits", FIXTURES / "digits.py")  # in no package
digits: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(digits)


def prepare_real(root: Path) -> Path:
    """MNIST's digits under `root`: of the folder `DP2DDP_MNIST`, or of one beside the checkout. Never a download.

    Where there is neither, scikit-learn's.
    """
    source = Path(os.environ.get("DP2DDP_MNIST") or ROOT.parent / "shared" / "mnist")  # 10,000 of them
    prepared: Path = digits.prepare(root, source) if source.is_dir() else prepare_sklearn(root)
    return prepared


def prepare_sklearn(root: Path) -> Path:
    """scikit-learn's digits under `root`: 1,438 to train on, 359 to test."""
    digits.build_from_sklearn(digits.raw_folder(root))
    return root
