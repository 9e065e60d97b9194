"""What the training benchmark starts, without training it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CASES = ["mnist", "images-w2", "images-w0", "many", "segmentation", "mixup", "detection"]


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.parametrize("name", CASES)
def test_originals_are_converted_whole(name: str) -> None:
    variants = importlib.import_module("variants")
    assert list(variants.CASES) == CASES
    texts = {each: variant.script(variants.CASES[name]) for each, variant in variants.VARIANTS.items()}
    assert "net = ddp.wrap_model(Net())" in texts["converted"]
    assert "net = Net()" in texts["unwrapped"]
    assert ("ddp.shard_loader(loader, rows=True)" in texts["converted"]) == (name == "detection")
    assert ("ddp.shard_loader(loader)" in (texts["converted-whole"] or "")) == (name == "detection")
    for text in filter(None, texts.values()):
        assert "            yield\n            optimizer.zero_grad()\n" in text
        compile(text, name, "exec")


FAILING = """
import os, time
def main():
    if os.environ.get("RANK") == "1":
        {}
    time.sleep(60)
    yield
"""


@pytest.mark.parametrize(
    ("statement", "message"),
    [("raise ValueError('torn')", "x, rank 1: (?s:.*)ValueError: torn"), ("os._exit(3)", "x, rank 1: .*exit code 3")],
)
def test_a_rank_that_fails_ends_the_turn(tmp_path: Path, statement: str, message: str) -> None:
    rank_set = importlib.import_module("rank_set")
    script = tmp_path / "script.py"
    script.write_text(FAILING.format(statement))
    ranks = rank_set.RankSet("x", script, [], rank_set.places(2, alone=False, device="cpu"))
    with ranks, pytest.raises(rank_set.RankError, match=message):
        ranks.turn(1, 1)
    assert not any(process.is_alive() for process in ranks._ranks.values())
