"""Scratch directories, times in printed lines."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny

from dp2ddp.verify.compare import printed, steps
from dp2ddp.verify.run import recording, runs, scratch
from dp2ddp.verify.run.run_options import Task
from dp2ddp.verify.start import client

OVERWRITES = """
import torch
open("log.txt", "a").write("more")
open("folder/plain.txt", "w").write("new")
torch.save([1], "net.pt")
print(open("kept.txt").read(), open("log.txt").read())
"""


def test_a_script_overwrites_only_its_own_copies(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    (here / ".git").mkdir()
    files = {"log.txt": "log ", "folder/plain.txt": "plain", "net.pt": "net", "kept.txt": "kept"}
    for name, text in {**files, ".git/HEAD": "x", "train.py": OVERWRITES}.items():
        (here / name).write_text(text)
    scratch.fill(tmp_path / "run" / "work", here)
    script = tmp_path / "run" / "work" / "train.py"
    run = tiny.run(script, tmp_path / "run", original=True)
    assert run.stdout == "kept log more\n"
    assert {name: (here / name).read_text() for name in files} == files
    assert set(run.files()) == {"log.txt", "folder/plain.txt", "net.pt"}
    assert not (run.work / ".git").exists()


@pytest.mark.parametrize(("gradient", "differs"), [(1e-12, False), (1e-4, True), (None, True)])
def test_a_step_that_an_optimizer_makes_of_rounding_is_no_difference(gradient: float | None, differs: bool) -> None:
    """Adam divides a gradient by its size: a bias in front of an InstanceNorm goes somewhere, and means nothing."""
    slots = [recording.Slot(name, "float64", (4,)) for name in ("weight", "scale", "bias")]
    ours, theirs = (
        recording.Recording(steps=[SimpleNamespace(slots=slots, sketches=each, gradients=[1.0, 0.5, gradient])])
        for each in ([(1, 1.0, 1.0), (2, 1.0, 1.0), (3, 0.1, bias)] for bias in (0.1, 0.2))
    )
    theirs.steps[0].sketches[2] = (4, 0.2, 0.2)
    (found,) = steps.differences(ours, theirs)
    assert (found.parameter, found.relative > 0.5) == (("bias", True) if differs else ("", False))


TIMES = [
    ("took 9.25 s", "took 12.75 s"),
    ("epoch 3 in 9.25s, loss 0.5", "epoch 3 in 12.75s, loss 0.5"),
    ("Time 9.25 ( 0.123)\tData  0.841 ( 0.841)\tLoss 0.7", "Time 12.75 ( 0.123)\tData  0.841 ( 0.841)\tLoss 0.7"),
    ("Total Elapse: 9.25, Best Result: 33.333%", "Total Elapse: 12.75, Best Result: 33.333%"),
    ("9.25 ms/batch", "12.75 ms/batch"),
    ("2024-05-01 10:11:12,345 epoch 3", "2024-05-01 10:11:13,346 epoch 3"),
    ("a step in 2.3e-05 s", "a step in 3.1e-04 s"),
    ("5.5 min, loss 0.5", "6.5 min, loss 0.5"),
    ("{'lr': 0.1, 'run': <function f at 0x7f3c12ab>}", "{'lr': 0.1, 'run': <function f at 0x7f99e0d1>}"),
]


@pytest.mark.parametrize("pair", TIMES)
def test_times_are_no_differences(pair: tuple[str, str]) -> None:
    assert list(printed.differences(*pair)) == []


@pytest.mark.parametrize(
    "pair",
    [
        ("loss 0.31 s_loss 0.2", "loss 0.99 s_loss 0.2"),
        ("0.31 s1 0.5", "0.77 s1 0.5"),
        ("Params: 11.2M, 45 s", "Params: 99.2M, 45 s"),
        ("0.5 D 0.6 D", "0.9 D 0.1 D"),
        ("max 0.91 min 0.12", "max 0.22 min 0.12"),
        ("31.2 MS-SSIM", "20.2 MS-SSIM"),
        ("5 m", "6 m"),
    ],
)
def test_numbers_before_other_words_are_no_durations(pair: tuple[str, str]) -> None:
    assert len(list(printed.differences(*pair))) == 1


@pytest.mark.parametrize(
    ("original", "converted", "relative", "whole"),
    [
        ("loss 0.50 in 3.1 s", "loss 0.25 in 3.2 s", 0.5, False),
        ("correct 10 of 20", "correct 5 of 20", 0.5, True),
        ("a 1.5 b 2", "a 1.5 b 3", 0.5, True),
        ("2024-05-01 10:11:12: 0.50", "2024-05-01 10:11:12: 0.25", 0.5, False),
        ("Time 1.5 (2.5) 0.50", "Time 1.5 (2.5) 0.25", 0.5, False),
        ("a net of 10m parameters", "a net of 5m parameters", 0.5, True),
        ("best inf, loss 0.50", "best inf, loss 0.25", 0.5, False),
    ],
)
def test_other_numbers_of_a_line_still_are(original: str, converted: str, relative: float, whole: bool) -> None:
    (line,) = printed.differences(original, converted)
    assert (line.relative, line.whole) == (pytest.approx(relative, rel=0.1), whole)
    assert not line.is_rounding or not whole


@pytest.mark.parametrize(
    ("original", "converted", "places"),
    [
        ("loss 0.1234", "loss 0.1236", 2.0),
        ("loss 0.12", "loss 0.125", 0.5),
        ("loss 0.5 at 3", "loss 0.5 at 4", 1.0),
        ("loss nan", "loss 0.5", None),
        ("loss 0.5", "lost 0.5", None),
        ("1e-3 done", "2e-3 done", 1.0),
        ("a", "", None),
    ],
)
def test_printed_numbers_are_compared_in_their_last_place(original: str, converted: str, places: float | None) -> None:
    (difference,) = printed.differences(original, converted)
    assert difference.places == (places if places is None else pytest.approx(places))


@pytest.mark.parametrize(("converted", "is_rounding"), [("7.676341925422385", True), ("7.676341925433", False)])
def test_the_last_of_all_digits_are_rounding(converted: str, is_rounding: bool) -> None:
    (line,) = printed.differences("0 7.676341925422383", f"0 {converted}")
    assert line.is_rounding == is_rounding


def test_pythonpath_leads_to_what_stands_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, other, run = tmp_path / "project", tmp_path / "other", tmp_path / "run"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [project, project / "src", other, "lib"])))
    monkeypatch.chdir(tmp_path)
    moved = ((project, run / "script"), (tmp_path / "lib", run / "work"))
    found = client.python_path(moved).split(os.pathsep)[-4:]
    assert found == [str(run / "script"), str(run / "script" / "src"), str(other), str(run / "work")]


PROCESS = """
import json, multiprocessing.process, os, sys, threading
import __main__
beside = [entry for entry in sys.path if not entry.startswith(os.getcwd())]
here = [os.path.relpath(entry) for entry in sys.path if entry.startswith(os.getcwd())]
print(json.dumps([
    sys.argv, os.path.basename(os.getcwd()), here, beside, vars(multiprocessing.process)["ORIGINAL_DIR"] == os.getcwd(),
    os.environ["FOR_ONE"], os.environ["PYTHONHASHSEED"], os.environ["OMP_NUM_THREADS"], sys.flags.hash_randomization,
    os.isatty(0), os.isatty(1), os.getpgrp() == os.getpid() == os.getsid(0), threading.active_count(),
    sys.stdout.encoding, sys.stdout.line_buffering, __main__.__name__, "dp2ddp.verify.start.fork_server" in sys.modules,
]))
print("to standard error", file=sys.stderr)
import atexit
atexit.register(lambda: print("the end", flush=True))
sys.exit(3)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sessions and pseudo-terminals")
def test_a_forked_run_finds_what_a_started_one_finds(tmp_path: Path) -> None:
    outputs = []
    with client.ForkServer() as server:
        for name, fork in (("forked", True), ("started", False)):
            work, streams = tmp_path / name / "work", tmp_path / name / "rank0"
            for folder in (work / "lib", streams):
                folder.mkdir(parents=True)
            (work / "train.py").write_text(PROCESS)
            env = {**client.environment(), "FOR_ONE": name.upper()}
            env["PYTHONPATH"] += os.pathsep + "lib"
            task = Task(str(tmp_path / name), str(work / "train.py"), ["-x"], runs.Options())
            process = server.start([task.as_text()], work, env, streams, fork)
            while (code := server.poll(process)) is None:
                time.sleep(0.05)
            assert code == 3
            assert env["SOURCE_DATE_EPOCH"] == "0"  # of PDFs
            assert (streams / "stderr.txt").read_text() == "to standard error\n"
            outputs.append((streams / "stdout.txt").read_text().replace(name.upper(), "its name"))
    assert "the end" in outputs[0]
    assert outputs[0] == outputs[1]
