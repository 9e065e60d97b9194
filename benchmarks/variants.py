"""What the training benchmark runs: its cases, and the scripts that train each of them, as texts."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

SCRIPTS = Path(__file__).parent / "scripts"
_STEP = re.compile(r"^( +)(?=optimizer\.zero_grad\(\)$)", re.MULTILINE)
_WRAP = "nn.DataParallel(Net())"


@dataclass(frozen=True)
class Case:
    """A training: an original in `scripts/`, and what it is started with; whether it has a `collate_fn`."""

    script: str
    batch_size: int = 64
    workers: int = 0
    collates: bool = False

    @property
    def original(self) -> Path:
        return SCRIPTS / f"{self.script}.py"


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "mnist": Case("mnist"),
        "images-w2": Case("images", workers=2),
        "images-w0": Case("images"),
        "many": Case("many"),
        "segmentation": Case("segmentation", batch_size=8),
        "mixup": Case("mixup", workers=2),
        "detection": Case("detection", batch_size=32, workers=2, collates=True),
    }
)


@dataclass(frozen=True)
class Variant:
    """A way to train a case.

    Attributes:
        text: gives its script for a case; None where it can't take part.
        general: the script is one for all cases, and is given the case's name.
        alone: it is one process, which knows of no others.
    """

    text: Callable[[Case], str | None]
    general: bool = False
    alone: bool = False

    def script(self, case: Case) -> str | None:
        """The text, with a `main` that stops ahead of each step."""
        text = self.text(case)
        return None if text is None else _stepping(text)

    def arguments(self, case: Case, samples: int) -> list[str]:
        """The command line behind the script's name."""
        sizes = [f"--samples={samples}", f"--batch-size={case.batch_size}", f"--workers={case.workers}"]
        return [case.script, *sizes] if self.general else sizes


def _stepping(text: str) -> str:
    changed, count = _STEP.subn(r"\1yield\n\1", text)
    assert count == 1, "one loop with one step"
    return changed


def _converted(case: Case, *, rows: bool) -> str | None:
    """With a `collate_fn`: each process loads its `rows`, or all whole batches."""
    if not rows and not case.collates:
        return None
    from dp2ddp.convert.pipeline import convert_source
    from dp2ddp.rules import Options

    conversion = convert_source(case.original.read_text(), str(case.original), Options(rows=rows))
    assert bool(conversion.notes) == (not rows), "whole batches are noted"
    return conversion.new_text


def _unwrapped(case: Case) -> str:
    text = case.original.read_text()
    assert text.count(_WRAP) == 1
    return text.replace(_WRAP, "Net()")


def _written(name: str, needs: str, case: Case) -> str | None:
    takes_part = importlib.util.find_spec(needs) and not (case.collates and needs != "torch")
    return (SCRIPTS / name).read_text() if takes_part else None


BY_HAND = "by-hand"
VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "converted": Variant(partial(_converted, rows=True)),
        "converted-whole": Variant(partial(_converted, rows=False)),
        BY_HAND: Variant(partial(_written, "by_hand.py", "torch"), general=True),
        "accelerate": Variant(partial(_written, "with_accelerate.py", "accelerate"), general=True),
        "fabric": Variant(partial(_written, "with_fabric.py", "lightning_fabric"), general=True),
        "unwrapped": Variant(_unwrapped, alone=True),
    }
)
