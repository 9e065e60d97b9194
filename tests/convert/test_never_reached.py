"""What no script with a wrap comes to stays as it is: whole scripts, and parts of files that they share."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from commands import command, write

from dp2ddp.convert.pipeline import convert_files
from dp2ddp.rules import Options

TRAIN = """\
import torch
from nets import build

net = build()
for epoch in range(2):
    torch.save(net.state_dict(), "net.pt")
"""
DEMO = """\
import torch
from torch import nn
from nets import plain

net = plain(1)
if isinstance(net, nn.DataParallel):
    net = net.module
torch.save(net.cuda(1), "demo.pt")
"""
NETS = """\
import torch
from torch import nn

def build():
    return inner(nn.DataParallel(nn.Linear(4, 2)))

def inner(net):
    return net.cuda(1)

def plain(gpu):
    return nn.Linear(4, 2).cuda(gpu)

if __name__ == "__main__":
    torch.save(plain(1).cuda(1), "tried.pt")
"""
FILES = {"train.py": TRAIN, "demo.py": DEMO, "nets.py": NETS}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, FILES)


def convert(*args: str) -> Result:
    result = command("convert", *args, "--in-place")
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("given", [["train.py", "demo.py"], [".", "--entry", "train.py", "--entry", "demo.py"], ["."]])
def test_what_is_never_reached_stays(given: list[str]) -> None:
    result = convert(*given)
    now = Path("nets.py").read_text()
    assert (
        now.replace("import dp2ddp_runtime as ddp\n", "")
        .replace("ddp.wrap_model", "nn.DataParallel")
        .replace("net.cuda()", "net.cuda(1)")
        == NETS
    )
    assert "return net.cuda()" in now
    assert Path("demo.py").read_text() == DEMO
    assert "never wraps a model" in result.output or given == ["."]
    assert result.output.count("nets.py: plain, its lines under `__main__`") == 1
    assert "same way" not in result.output  # only train.py is started


@pytest.mark.parametrize(
    "use",
    ["nets.plain(1)", "getattr(nets, 'plain')(1)", "getattr(nets, sys.argv[1])(1)", "nets.__dict__[sys.argv[1]](1)"],
)
def test_what_may_be_reached_is_converted(use: str) -> None:
    script = f"import sys, nets\nnets.build()\n{use}\n"
    done = convert_files({"train.py": script, "nets.py": NETS}, ["train.py"], Options())
    assert "return nn.Linear(4, 2).cuda()" in done["nets.py"].new_text
    assert list(done["nets.py"].unreached) == ["its lines under `__main__`"]


@pytest.mark.parametrize(
    "picked", ["models.__dict__[sys.argv[1]]()", "this = sys.modules[__name__]\ngetattr(this, sys.argv[1])()"]
)
def test_what_is_picked_from_elsewhere_reaches_nothing_here(picked: str) -> None:
    script = f"import sys\nfrom nets import build\nfrom torchvision import models\nbuild()\n{picked}\n"
    done = convert_files({"train.py": script, "nets.py": NETS}, ["train.py"], Options())
    assert list(done["nets.py"].unreached) == ["plain", "its lines under `__main__`"]


@pytest.mark.parametrize("asked", [["."], ["train.py", "alone.py"]])
def test_a_script_on_one_device_stays_as_it_is_beside_those_with_which_it_shares_files(asked: list[str]) -> None:
    wrap = "net = nn.DataParallel(plain(0), device_ids=[0])"
    Path("alone.py").write_text(
        f"import torch\nfrom torch import nn\nfrom nets import plain\n\n{wrap}\ntorch.save(net, 'alone.pt')\n"
    )
    shown = convert(*asked).output
    assert "alone.py: no DataParallel in it works on several devices, so it stays one process" in shown
    assert "ddp" not in Path("alone.py").read_text()
    assert "ddp.wrap_model" in Path("nets.py").read_text()
    assert "  python train.py" in shown
    assert "and in the same way" not in shown


def test_devices_of_wraps_that_a_script_never_comes_to_are_not_its_own() -> None:
    helpers = (
        "import torch\nfrom torch import nn\n\n\ndef on_one(net):\n    return nn.DataParallel(net, device_ids=[{}])\n"
    )
    files = {"train.py": "import helpers\nfrom torch import nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"}
    for ids in ("0", "torch.cuda.current_device()", "helpers.IDS"):
        done = convert_files({**files, "helpers.py": helpers.format(ids)}, ["train.py"], Options())
        assert "ddp.setup()\n" in done["train.py"].new_text
        assert not any(each.notes for each in done.values())


SOLVER = "from nets import build\n\nclass Solver:\n    def __init__(self):\n        self.net = build()\n"


def test_names_pass_through_files_that_say_nothing_of_training() -> None:
    files = {
        "train.py": "from solvers import create\n\nif __name__ == '__main__':\n    print(create().net)\n",
        "solvers/__init__.py": "from .solver import Solver\n\ndef create():\n    return Solver()\n",
        "solvers/solver.py": SOLVER,
        "nets.py": NETS,
    }
    done = convert_files(files, ["train.py"], Options())
    assert "ddp.setup()" in done["train.py"].new_text
    assert "ddp.wrap_model" in done["nets.py"].new_text


def test_a_wrap_to_which_no_script_is_seen_to_come_is_said() -> None:
    done = convert_files({"train.py": "import nets\n", "nets.py": NETS}, ["train.py"], Options())
    assert not done["nets.py"].changed
    (note,) = done["nets.py"].notes
    assert "no script is seen to come to this" in note.what


def test_idle_parts_of_files_that_say_nothing_of_training_hide_nothing_elsewhere() -> None:
    """Their lines are no lines of the program."""
    words = "def unused(word):\n" + "    word += word\n" * 20
    script = f"import words\nfrom nets import build\n\n{TRAIN}"
    done = convert_files({"train.py": script, "words.py": words, "nets.py": NETS}, ["train.py"], Options())
    assert "ddp.setup()" in done["train.py"].new_text
    assert "ddp.save(" in done["train.py"].new_text
    assert "ddp.wrap_model" in done["nets.py"].new_text


def test_a_file_that_no_script_comes_to_is_listed(tmp_path: Path) -> None:
    """A trainer's class that nobody imports, beside a script that converts; what is named is nobody's to list."""
    trainer = (
        "from torch import nn\nclass Trainer:\n    def __init__(self, net):\n        self.net = nn.DataParallel(net)\n"
    )
    write(tmp_path, {"trainer.py": trainer})
    said = convert(".").stderr
    left = "trainer.py:4: DataParallel is left here, as no script that is started comes to it; "
    assert f"  {left}if it is used, convert it with --entry trainer.py\n" in said
    assert said.count("is left here") == 1
    write(tmp_path, FILES)
    assert "is left here" not in convert(".", "--entry", "train.py").stderr


@pytest.mark.parametrize(
    ("ending", "edits"),
    [
        ("", 0),
        ("show(1)\n", 1),
        ("show = getattr(show, name)\n", 1),
        ("import sys\ngetattr(sys.modules[__name__], name)(1)\n", 1),
        # Whoever starts it by changing a line has DataParallel there, too.
        ("def other():\n    nn.DataParallel(nn.Linear(2, 2))\n", 1),
    ],
)
def test_a_script_s_own_functions_that_nothing_calls_stay(ending: str, edits: int) -> None:
    head = "import cv2\nfrom torch import nn\ndef show(x):\n    cv2.destroyAllWindows()\n"
    done = convert_files(
        {"train.py": f"{head}net = nn.DataParallel(nn.Linear(4, 2))\n{ending}"}, ["train.py"], Options()
    )
    assert done["train.py"].new_text.count("ddp.main_only(cv2.destroyAllWindows)()") == edits
    assert list(done["train.py"].unreached) == ["show"] * (not edits)


def test_a_script_beside_that_does_not_even_name_data_parallel_stays(tmp_path: Path) -> None:
    """Two scripts of one folder, both named by the user, with a file in common."""
    search = "import torch, tools\nfor x in torch.utils.data.DataLoader([1.0]):\n    torch.save(x, tools.PATH)\n"
    write(tmp_path, {"search.py": search, "tools.py": "PATH = 'x.pt'\n", "train.py": f"import tools\n{TRAIN}"})
    said = convert("train.py", "search.py").output
    assert Path("search.py").read_text() == search
    assert "search.py: never wraps a model, and stays as it is\n" in said
    assert "search.py" not in said[said.index("How to run") :]
