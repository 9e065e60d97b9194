"""Planted mistakes: each fits its conversion once; what is said is judged right, healthy scripts too; one is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from mistakes import __main__ as command
from mistakes.trial import BASES, Mistake, Said, converted, mistakes

MISTAKES = {mistake.kind: mistake for mistake in mistakes()}
LOSS, FILE, FAILING = (MISTAKES[kind] for kind in ("loss scaled", "a file not written", "noise of each rank's own"))
MOMENTUM = MISTAKES["momentum or betas changed"]  # its cause can be seen before its effect


def test_each_fits_its_conversion_once() -> None:
    assert len(MISTAKES) == len(mistakes()) >= 60
    assert len(BASES) >= 15
    for mistake in MISTAKES.values():
        assert mistake.text() != converted(mistake.script)
        assert mistake.words


@pytest.mark.parametrize(
    ("mistake", "said", "judged"),
    [
        (LOSS, Said("differ", 1, "the update is 2 times the original's"), "fsn"),
        (LOSS, Said("differ", 2, "other gradients"), "f--"),
        (LOSS, Said("differ", None, "unscaled, sometimes"), "f--"),
        (LOSS, Said("agree"), "---"),
        (LOSS, Said("could not run", cause="twice", side="converted"), "---"),
        (FILE, Said("differ", None, "rank 0 has not written it"), "fsn"),
        (FILE, Said("differ", 1, "other keys"), "f--"),
        (FAILING, Said("could not run", cause="differs between ranks", side="converted"), "fsn"),
        (FAILING, Said("could not run", cause="differs between ranks", side="original"), "---"),
        (MOMENTUM, Said("differ", 1, "momentum"), "fsn"),
        (MOMENTUM, Said("differ", 3, "momentum"), "f-n"),
    ],
)
def test_what_is_said_is_judged(mistake: Mistake, said: Said, judged: str) -> None:
    assert said.judged(mistake) == judged


def test_one_is_found(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "scheduler stepped twice"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("fsn scheduler stepped twice (iterations): differ, step 3 (right: 3)")
    assert out.endswith("1: 1 found, 1 at the right step, 1 named\n")


@pytest.mark.parametrize(("verdict", "code", "agreed"), [("agree", 0, 2), ("not shown", 1, 0)])
def test_of_healthy_scripts_all_but_agree_is_wrong(
    verdict: str, code: int, agreed: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(That they do agree is what the tests of `verify` show.)"""
    monkeypatch.setattr(command, "verify", lambda *_: Said(verdict))
    assert command.main(["--healthy", "--script", "segment", "--seeds=2"]) == code
    assert capfd.readouterr().out.endswith(f"2: {agreed} agree\n")
