"""`dp2ddp verify` as users call it: verdicts, exit codes, output; in this process, the scripts in their own."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
import tiny
from click.testing import Result
from commands import command

from dp2ddp.command import progress
from dp2ddp.verify.run import scratch

FAILS = "\nraise ValueError('on purpose\\nand so on')\n"
AUGMENTED = tiny.ORIGINAL.replace(
    "loader = DataLoader(TensorDataset(inputs, targets)",
    """

class Noisy(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn_like(x), y


loader = DataLoader(Noisy(inputs, targets)""",
)


@pytest.fixture
def verify(workplace: Path, monkeypatch: pytest.MonkeyPatch):
    """Calls `dp2ddp verify` in the folder of `train.py`."""
    monkeypatch.chdir(workplace)

    def call(*arguments: str) -> Result:
        return command("verify", *arguments)

    return call


def test_agreement_is_shown_in_a_sentence_and_progress_in_steps(
    verify, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "doing", lambda what, *total: said.append(what))
    before = {path.name: path.read_bytes() for path in workplace.iterdir() if path.is_file()}
    result = verify("train.py", "--nproc", "2")
    assert result.exit_code == 0, result.output
    assert "They agree: 9 optimizer steps (same bits)" in result.output
    assert "4 printed lines, 1 file." in result.output
    assert {path.name: path.read_bytes() for path in workplace.iterdir() if path.is_file()} == before
    assert "training: original at step 9, converted at step 9" in said


def test_three_ranks_are_compared_in_float64_and_json_says_so(verify) -> None:
    result = verify("train.py", "--nproc", "3", "--steps", "4", "--format", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["verdict"], told["precision"], told["replicas"]) == ("agree", "float64", 3)
    assert [step["step"] for step in told["steps"]] == [1, 2, 3, 4]
    assert len(told["losses"]["original"]) == len(told["losses"]["converted"]) == 4
    assert any("float64" in note for note in told["notes"])


def test_data_above_the_scratch_folder_is_to_have_a_whole_path(verify, workplace: Path) -> None:
    (workplace / "original.py").write_text(f"open('../digits.bin')\n{tiny.ORIGINAL}")
    (workplace / "converted.py").write_text(f"open('../digits.bin')\n{tiny.converted()}")
    result = verify("original.py", "--converted", "converted.py")
    assert (result.exit_code, "what else it reads by `..` needs a whole path" in result.stderr) == (2, True)


@pytest.mark.parametrize("side", ["original", "converted"])
def test_a_side_that_fails_shows_its_own_traceback(verify, workplace: Path, side: str) -> None:
    texts = {"original": tiny.ORIGINAL, "converted": tiny.converted()}
    texts[side] += FAILS
    for name, text in texts.items():
        (workplace / f"{name}.py").write_text(text)
    result = verify("original.py", "--converted", "converted.py")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert f"the {side} script could not run: ValueError: on purpose\n" in result.stderr


def test_a_script_that_takes_too_long_is_ended(verify, workplace: Path) -> None:
    (workplace / "sleeps.py").write_text(tiny.ORIGINAL + "time.sleep(600)\n")
    result = verify("sleeps.py", "--timeout", "2")
    assert result.exit_code == 2
    assert "script could not run: still running after 2 seconds" in result.stderr


def test_scripts_that_end_before_they_train_could_not_run(verify, workplace: Path) -> None:
    """Wrong arguments, for one: that both sides refuse them is no agreement."""
    check = "import sys\nif sys.argv[1:]:\n    sys.exit(sys.stderr.write('usage: refuses.py') and 2)\n"
    (workplace / "refuses.py").write_text(check + tiny.ORIGINAL)
    result = verify("refuses.py", "--", "x")
    assert result.exit_code == 2
    assert "usage: refuses.py" in result.stderr
    assert "the original script could not run: exit code 2 before the first optimizer step" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "missing.py: no such file"),
        (["sizes.py"], "sizes.py: nothing to convert: no nn.DataParallel"),
        (["own.py"], "own.py:2: `Own` changes how `DataParallel` works (`forward`); nothing was converted; wrap the"),
        (["train.py", "--converted", "missing.py"], "missing.py: no such file"),
    ],
)
def test_bad_input_is_one_line(verify, workplace: Path, arguments: list[str], message: str) -> None:
    derived = "class Own(nn.DataParallel):\n    def forward(self, x):\n        return x\n"
    (workplace / "own.py").write_text(f"from torch import nn\n{derived}net = Own(nn.Linear(4, 2))\n")
    result = verify(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"dp2ddp: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_is_compared_exactly(verify, workplace: Path, workers: int) -> None:
    """In workers, too: what samples draw there depends on the sample alone."""
    text = AUGMENTED.replace("shuffle=True", f"shuffle=True, num_workers={workers}")
    (workplace / "augmented.py").write_text(text)
    told = json.loads(verify("augmented.py", "--format", "json").stdout)
    assert (told["verdict"], told["not_shown"]) == ("agree", None), told
    assert {step["relative"] for step in told["steps"]} == {0.0}


def test_what_the_original_does_not_do_twice_shows_nothing(verify, workplace: Path) -> None:
    """Here a sample draws from the system's random numbers."""
    unseeded = AUGMENTED.replace("0.1 * torch.randn_like(x)", "__import__('random').SystemRandom().random()")
    assert unseeded != AUGMENTED
    (workplace / "augmented.py").write_text(unseeded)
    result = verify("augmented.py")
    assert result.exit_code == 4
    assert "NOT SHOWN the original doesn't do the same twice: step 1: " in result.stdout
    assert "DIFFERENT" not in result.stdout
    (workplace / "augmented_ddp.py").write_text(tiny.converted(unseeded).replace("lr=0.5", "lr=1.0"))
    result = verify("augmented.py", "--converted", "augmented_ddp.py")
    assert (result.exit_code, "DIFFERENT step 1: lr (learning rate) of" in result.stdout) == (1, True), result.stdout


def test_what_is_another_number_each_time_shows_nothing_and_excuses_nothing(verify, workplace: Path) -> None:
    text = tiny.ORIGINAL + "import os\nprint('by', os.getpid() * 'x')\n"
    (workplace / "timed.py").write_text(text)
    result = verify("timed.py")
    assert result.exit_code == 4
    assert result.stdout.startswith("NOT SHOWN the original doesn't do the same twice: printed line 5: ")
    assert len(result.stdout) < 1500
    (workplace / "timed_ddp.py").write_text(
        tiny.converted(text).replace('"correct", correct', '"correct", correct + 1')
    )
    result = verify("timed.py", "--converted", "timed_ddp.py")
    assert (result.exit_code, "DIFFERENT printed line 1: " in result.stdout) == (1, True), result.stdout


PRINTS_TIMES = """
from time import perf_counter
first = time.time()
time.sleep(0.2)
print("%d\t%.4f\t%.3f" % (7, time.time() - first, perf_counter()), time.time_ns())
with open("seconds.csv", "a") as log:
    log.write(f"{time.strftime('%c', time.localtime(first))},{time.time() - first}")
from datetime import datetime
began = datetime.now()
assert isinstance(began, datetime) and began > datetime(2020, 1, 1)
open(f"{began:%d-%H%M%S-%f}-{time.strftime('%S')}.txt", "w").close()
"""


def test_times_are_the_same_each_time_and_only_on_rank_0(verify, workplace: Path) -> None:
    """Whatever they are called, and where they say nothing at all; a rank's own seed is still one."""
    (workplace / "timed.py").write_text(tiny.ORIGINAL + PRINTS_TIMES)
    result = verify("timed.py")
    assert (result.exit_code, "They agree" in result.stdout) == (0, True), result.stdout
    seeded = tiny.ORIGINAL.replace("torch.manual_seed(3)", "torch.manual_seed(int(time.time()))")
    (workplace / "seeded.py").write_text(seeded)
    assert verify("seeded.py").exit_code == 0
    (workplace / "wrong.py").write_text(tiny.converted(seeded).replace("ddp.broadcast(time.time())", "time.time()"))
    result = verify("seeded.py", "--converted", "wrong.py")
    assert (result.exit_code, "the seed that torch was given before" in result.stdout) == (1, True), result.stdout


def test_what_is_printed_above_setup_is_printed_once(verify, workplace: Path) -> None:
    text = "import argparse\nargs = argparse.ArgumentParser().parse_args()\nprint(args)\n" + tiny.ORIGINAL
    (workplace / "early.py").write_text(text)
    above = tiny.converted(text).replace("ddp.setup()\n", "").replace("print(args)\n", "print(args)\nddp.setup()\n")
    (workplace / "early_ddp.py").write_text(above)
    result = verify("early.py", "--converted", "early_ddp.py")
    assert (result.exit_code, "They agree" in result.stdout) == (0, True), result.stdout


def test_a_converted_script_that_comes_through_a_pipe(verify, workplace: Path) -> None:
    """As from `--converted <(sed ... good.py)`."""
    pipe = workplace / "pipe"
    os.mkfifo(pipe)
    text = tiny.converted(tiny.ORIGINAL).replace("lr=0.5", "lr=1.0")
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    result = verify("train.py", "--converted", "pipe")
    writer.join()
    assert (result.exit_code, "DIFFERENT step 1: lr (learning rate) of" in result.stdout) == (1, True), result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_scripts_find_a_terminal(verify, workplace: Path) -> None:
    (workplace / "bar.py").write_text("import os\nprint(os.get_terminal_size(0).columns)\n" + tiny.ORIGINAL)
    result = verify("bar.py", "--steps", "2", "--format", "json")
    told = json.loads(result.stdout)
    assert told["verdict"] == "agree", told


@pytest.mark.parametrize("inside", [True, False])
def test_a_script_of_another_folder_finds_its_modules_and_stays(
    verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Also where its folder holds so much that it would be linked as a whole, and where it writes beside itself."""
    monkeypatch.setattr(scratch, "MOST_FILES", 2)
    here = tmp_path / "here"
    project = here / "deep" / "project" if inside else tmp_path / "project"
    for folder in (here, project):
        folder.mkdir(parents=True)
    (here / "samples.txt").write_text("23")
    beside = "open(__file__.replace('train.py', 'more.txt'), 'w').write('ours')\n"
    beside += "import os\nopen(os.path.basename(os.path.realpath(__file__)) + '.log', 'w').write('x')\n"
    files = {"train.py": tiny.ORIGINAL + beside, "sizes.py": "HIDDEN = 5", "net.pt": "mine", "more.txt": ""}
    for name, text in files.items():
        (project / name).write_text(text)
    monkeypatch.chdir(here)
    result = verify(str(project / "train.py"))
    assert result.exit_code == 0, result.output
    assert "4 printed lines, 3 files" in result.output
    assert {path.name: path.read_text() for path in project.iterdir() if path.is_file()} == files
    assert [path.name for path in here.iterdir() if path.is_file()] == ["samples.txt"]


@pytest.mark.parametrize("guard", ["torch.cuda.device_count() > 1", "net.in_features > 9"])
def test_an_original_that_splits_no_batch_is_told(verify, workplace: Path, guard: str) -> None:
    script = workplace / "guarded.py"
    script.write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(1)\nnet = nn.Linear(4, 2)\n"
        f"if {guard}:\n    net = nn.DataParallel(net)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(3):\n    optimizer.zero_grad()\n"
        "    net(torch.ones(4, 4)).sum().backward()\n    optimizer.step()\n"
    )
    done = verify("guarded.py", "--format", "json")
    told = json.loads(done.stdout)
    assert told["verdict"] == ("not shown" if "net" in guard else "agree")
    assert "called no nn.DataParallel" in str(told["not_shown"]) or "net" not in guard


def test_a_bias_that_holds_rounding_alone_is_no_difference(verify, workplace: Path) -> None:
    """In front of BatchNorm, from zero, on three ranks; and with a new optimizer for each epoch."""
    text = tiny.ORIGINAL.replace("nn.ReLU()", "nn.BatchNorm1d(HIDDEN), nn.ReLU()").replace("count = ", "count = 1 + ")
    text = text.replace("optimizer = ", "nn.init.zeros_(net.module[0].bias)\noptimizer = ")
    new = "    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)\n"
    (workplace / "biased.py").write_text(text.replace("    correct = total = 0\n", f"{new}    correct = total = 0\n"))
    told = json.loads(verify("biased.py", "--nproc", "3", "--format", "json").stdout)
    assert (told["verdict"], told["precision"]) == ("agree", "float64"), told


def test_the_script_s_options_before_two_dashes_are_told_where_to_go(verify) -> None:
    result = verify("train.py", "--epochs", "1", "--nproc", "3", "--lr=0.1")
    assert result.exit_code == 2
    assert "No such option '--epochs'" in result.stderr or "No such option: --epochs" in result.stderr
    assert "SCRIPT's own go after --: main verify SCRIPT [OPTIONS] -- ARGS" in result.stderr


def test_quiet_is_the_verdict_alone(verify) -> None:
    quiet = verify("train.py", "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout.startswith("They agree: 9 optimizer steps")
    assert quiet.stdout.count("\n") == 1


def test_ranks_that_come_apart_are_a_difference(verify, workplace: Path) -> None:
    """The runtime ends such a conversion, and the original trains."""
    apart = "        if epoch == 1 and ddp.rank() == 1:\n            net(x)\n        output = net(x)\n"
    (workplace / "apart.py").write_text(tiny.edited(("        output = net(x)\n", apart)))
    result = verify("train.py", "--converted", "apart.py")
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("DIFFERENT step 4: the conversion ends: "), result.stdout
    assert "apart.py:" in result.stdout.splitlines()[0]
