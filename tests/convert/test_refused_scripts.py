"""A script that can't be converted is not written either: `convert t.py -o o.py && torchrun o.py` must not start it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result
from commands import command

GOOD = "import torch.nn as nn\n\nnet = nn.DataParallel(nn.Linear(4, 2))\n"


BAD = """\
import torch.nn as nn

class Own(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        return super().scatter(inputs, kwargs, device_ids[1:])

net = Own(nn.Linear(4, 2))
"""


COPIES = "def run(net, x):\n    return torch.cat(parallel_apply(replicate(net, [0, 1]), x.chunk(2)))\n"


WHY = "bad.py:3  DDP016  `Own` changes how `DataParallel` works (`scatter`); nothing was converted; wrap the model in"


LAST = "nothing was written: what can't be converted is named above\n"


def run(*args: str, given: str | None = None) -> Result:
    return command("convert", *args, given=given)


@pytest.fixture(autouse=True)
def _scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(GOOD)
    Path("bad.py").write_text(BAD)


@pytest.mark.parametrize(
    "args",
    [
        ["bad.py", "-o", "out.py"],
        ["bad.py", "-o", "-"],
        ["bad.py", "--in-place", "--vendor"],
        ["bad.py"],
    ],
)
def test_nothing_is_written_and_the_exit_code_is_2(args: Sequence[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert WHY in result.stderr
    assert result.stderr.endswith(LAST)
    assert sorted(os.listdir()) == ["bad.py", "good.py"]
    assert (Path("good.py").read_text(), Path("bad.py").read_text()) == (GOOD, BAD)


def test_scripts_found_in_a_directory_are_left_as_they_are_beside_the_others() -> None:
    result = run(".", "-o", "../refused-out", "--force")
    assert result.exit_code == 0, result.stderr
    assert "1 script left alone:\n  bad.py:3: `Own` changes how `DataParallel` works" in result.stderr
    assert Path("../refused-out/bad.py").read_text() == BAD
    assert "ddp.wrap_model" in Path("../refused-out/good.py").read_text()
    assert run(".", "--strict").exit_code == 1


def test_scripts_that_need_nothing_don_t_hide_those_that_are_refused() -> None:
    Path("bad.py").write_text(f"import torch\nfrom torch.nn.parallel import parallel_apply, replicate\n\n{COPIES}")
    Path("good.py").write_text("from bad import run\nif __name__ == '__main__':\n    run(1, 2)\n")
    Path("other.py").write_text("import bad\nif __name__ == '__main__':\n    print(bad)\n")
    done = run(".", "-o", "../left")
    assert (done.exit_code, Path("../left").exists()) == (2, False), done.stderr


def test_a_module_that_has_a_note_alone_is_not_said_to_be_refused() -> None:
    Path("good.py").write_text(f"import rows\n{GOOD}")
    Path("rows.py").write_text("from torch.utils.data import IterableDataset\nclass Rows(IterableDataset):\n    pass\n")
    assert "rows.py: no change\n" in run("good.py").stderr


def test_a_wrap_left_behind_by_an_earlier_conversion_is_refused() -> None:
    assert run("good.py", "--in-place").exit_code == 0
    Path("late.py").write_text("import torch.nn as nn\nimport good\nnet = nn.DataParallel(good.net.module)\n")
    result = run("late.py", "-o", "out.py")
    assert result.exit_code == 2
    assert "late.py:3: still uses nn.DataParallel, in one program with good.py, which was" in result.stderr
    assert not Path("out.py").exists()


def test_a_script_of_its_own_ddp_with_no_data_parallel_has_nothing_to_convert() -> None:
    start = "import torch\nimport torch.nn as nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    script = f"{start}torch.distributed.init_process_group('nccl')\nnet = DDP(nn.Linear(4, 2))\n"
    Path("own.py").write_text(f"{script}print(isinstance(net, nn.DataParallel))\n")
    assert run("own.py").stderr == "own.py: nothing to convert\n"
    Path("own.py").write_text(f"{script}net = nn.DataParallel(nn.Linear(4, 2))\n")
    assert "own.py:4  DDP016  sets up distributed training already: calls init_process_group" in run("own.py").stderr
    Path("good.py").write_text(Path("own.py").read_text())
    told = run(".").stderr
    assert (told.count("bad.py:3: "), told.count("sets up"), told.count("in the same way for own.py:4")) == (1, 1, 1)
