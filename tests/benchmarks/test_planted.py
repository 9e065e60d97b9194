"""Planted mistakes: each fits its conversion once; what is said of them is judged right; a few are run."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from mistakes import __main__ as command
from mistakes.bases import BASES, converted
from mistakes.catalogue import MISTAKES
from mistakes.planted import Mistake
from mistakes.table import Healthy, Judged, of_healthy, of_mistakes
from mistakes.trial import Said

LOSS = next(mistake for mistake in MISTAKES if mistake.name == "loss scaled/flips")
FILE = next(mistake for mistake in MISTAKES if mistake.name == "a file not written/gan")
FAILING = next(mistake for mistake in MISTAKES if mistake.name == "noise of each rank's own/gan")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_each_fits_its_conversion_once(mistake: Mistake) -> None:
    assert mistake.text() != converted(mistake.script)
    assert mistake.words


def test_there_are_enough_of_each_sort() -> None:
    kinds = Counter(mistake.kind for mistake in MISTAKES)
    assert len(MISTAKES) >= 100
    assert len(kinds) >= 25
    assert sum(mistake.augmented for mistake in MISTAKES) >= len(MISTAKES) / 2
    assert any(BASES[mistake.script].loading == "main" for mistake in MISTAKES)
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert len(BASES) >= 20


@pytest.mark.parametrize(
    ("mistake", "said", "judged"),
    [
        (LOSS, Said("differ", 1, "the update is 2 times the original's"), (True, True, True)),
        (LOSS, Said("differ", 2, "other gradients"), (True, False, False)),
        (LOSS, Said("differ", None, "unscaled, sometimes"), (True, False, False)),
        (LOSS, Said("agree"), (False, False, False)),
        (LOSS, Said("not shown"), (False, False, False)),
        (LOSS, Said("could not run", cause="twice", side="converted"), (False, False, False)),
        (FILE, Said("differ", None, "rank 0 has not written it"), (True, True, True)),
        (FILE, Said("differ", 1, "other keys"), (True, False, False)),
        (FAILING, Said("could not run", cause="differs between ranks", side="converted"), (True, True, True)),
        (FAILING, Said("could not run", cause="differs between ranks", side="original"), (False, False, False)),
    ],
)
def test_what_is_said_is_judged(mistake: Mistake, said: Said, judged: tuple[bool, bool, bool]) -> None:
    found = Judged(mistake, said)
    assert (found.found, found.at_step, found.named) == judged


def test_a_cause_may_be_seen_before_its_effect() -> None:
    mistake = next(each for each in MISTAKES if each.name == "momentum or betas changed/imagenet")
    assert [step for step in range(5) if mistake.is_at(step)] == [1, 2]


def test_tables_count() -> None:
    judged = [
        Judged(LOSS, Said("differ", 1, "2 times the other")),
        Judged(LOSS, Said("agree")),
        Judged(FILE, Said("differ")),
    ]
    rows = {cells[0]: cells[1:] for line in of_mistakes(judged).splitlines() if (cells := line.split("|")[1:-1])}
    told = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    assert told["loss scaled"] == ["2", "1", "1", "1", "1 agree"]
    assert told["a file not written"] == ["1", "1", "1", "0", ""]
    assert told["**all**"] == ["3", "2", "2", "1", "1 agree"]
    runs = [Healthy("flips", seed, Said(verdict)) for seed, verdict in enumerate(["agree", "differ", "differ"])]
    assert "| flips   | 3    | 1     | 2 differ     |" in of_healthy(runs)


def test_a_few_are_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.json"
    chosen = ["--only", "scheduler stepped twice", "--script", "words", f"--json={summary}"]
    assert command.main(chosen) == 0, capfd.readouterr().out
    (told,) = json.loads(summary.read_text())
    assert (told["name"], told["found"], told["right step"]) == ("scheduler stepped twice/words", True, True)
    assert told["said"]["verdict"] == "differ"


def test_healthy_scripts_agree(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--healthy", "--script", "stopping", "denoise", "--seeds=1"]) == 0
    assert "| **all**  | 2    | 2     |              |" in capfd.readouterr().out
