"""Which questions for the number of devices are asked about the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = "import torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
_N = "torch.cuda.device_count()"


@pytest.mark.parametrize("test", [f"{_N} > 0", f"{_N} >= 1", f"{_N} != 0", f"{_N} == 0", f"{_N} < 1", f"not {_N}", _N])
def test_whether_there_is_a_gpu_each_rank_sees_itself(test: str) -> None:
    """On CPU ranks there is none, however many they are."""
    line = f"device = 'cuda' if {test} else 'cpu'\n"
    assert convert_source(_HEAD + line, "train.py", Options()).new_text.endswith(line)


def test_a_guard_of_a_wrap_asks_about_the_job() -> None:
    for guard in (f"if {_N} > 0:\n    net = nn.DataParallel(net)\n", f"net = nn.DataParallel(net) if {_N} else net\n"):
        assert "ddp.device_count()" in convert_source(_HEAD + guard, "train.py", Options()).new_text


def test_what_is_told_of_each_device_a_rank_tells_of_its_own() -> None:
    loop = f"for i in range({_N}):\n    print(f'{{i}}: {{torch.cuda.get_device_name(i)}}')\n"
    names = f"names = [torch.cuda.get_device_properties(i) for i in range({_N})]\n"
    assert convert_source(_HEAD + loop + names, "train.py", Options()).new_text.endswith(loop + names)
    for line in (f"ids = list(range({_N}))\n", f"sizes = [8 for i in range({_N})]\n", f"size = 8 * {_N}\n"):
        assert convert_source(_HEAD + line, "train.py", Options()).new_text.endswith(
            line.replace(_N, "ddp.device_count()")
        )


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (f"print(torch.cuda.get_device_name({_N} - 1))\n", None),
        (f"last = {_N} - 1\nprint(torch.cuda.get_device_name(last), last)\n", None),
        (f"n = {_N}\nfor i in range(n):\n    print(torch.cuda.get_device_name(i))\n", None),
        (f"args.n = {_N}\nprint(torch.cuda.get_device_name(args.n - 1))\n", None),
        (
            f"n = {_N}\nprint(n, [torch.cuda.get_device_name(i) for i in range(n)])\n",
            f"n = ddp.device_count()\nprint(n, [torch.cuda.get_device_name(i) for i in range({_N})])\n",
        ),
        (
            f"args.n = {_N}\nprint(torch.cuda.get_device_name(args.n - 1), args.n)\n",
            f"args.n = ddp.device_count()\nprint(torch.cuda.get_device_name({_N} - 1), args.n)\n",
        ),
        (f"others = {_N} - 1\nlr = 0.1 * others\n", "others = ddp.device_count() - 1\nlr = 0.1 * others\n"),
    ],
)
def test_a_number_that_picks_a_gpu_is_one_that_a_rank_sees(lines: str, after: str | None) -> None:
    result = convert_source(_HEAD + lines, "train.py", Options())
    assert result.new_text.endswith("net = ddp.wrap_model(nn.Linear(4, 2))\n" + (after or lines))
    assert not result.notes


_MEMORY = "torch.cuda.get_device_properties(i).total_memory"


@pytest.mark.parametrize(
    "lines",
    [
        f"total = 0\nfor i in range({_N}):\n    total += {_MEMORY}\nprint(total)\nbatch = total // 2**28\n",
        f"for i in range({_N}):\n    torch.cuda.manual_seed(torch.initial_seed() + i)\n    torch.cuda.manual_seed(i)\n",
        f"args.memory = [{_MEMORY} for i in range({_N})]\n",
        f"def look():\n    global memory\n    memory = [{_MEMORY} for i in range({_N})]\nlook()\n",
    ],
)
def test_what_is_worked_out_of_all_devices_is_noted(lines: str) -> None:
    result = convert_source(_HEAD + lines, "train.py", Options())
    (note,) = (each for each in result.notes if each.rule == "DDP023")
    assert f"range({_N})" in result.new_text
    assert "a rank sees only its own" in note.what
    assert "ddp.gather" in note.todo


@pytest.mark.parametrize(
    "lines",
    [
        f"for i in range({_N}):\n    p = torch.cuda.get_device_properties(i)\n    print(p.name, p.total_memory)\n",
        f"print(', '.join(torch.cuda.get_device_name(i) for i in range({_N})))\n",
        f"import logging\nlog = logging.getLogger()\nfor i in range({_N}):\n    log.info({_MEMORY})\n",
        f"for i in range({_N}):\n    with torch.cuda.device(i):\n        torch.cuda.empty_cache()\n",
    ],
)
def test_what_is_only_shown_of_devices_is_not_noted(lines: str) -> None:
    result = convert_source(_HEAD + lines, "train.py", Options(select=frozenset({"DDP023"})))
    assert result.new_text == _HEAD + lines
    assert not result.notes


def test_what_another_file_may_ask_for_is_noted(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(f"import torch\nmemory = sum({_MEMORY} for i in range({_N}))\n")
    (tmp_path / "train.py").write_text(f"import config\n{_HEAD}batch = config.memory >> 28\n")
    found = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert "a rank sees only its own" in " ".join(found.output.split())


_VISIBLE = "os.environ['CUDA_VISIBLE_DEVICES']"


@pytest.mark.parametrize(
    "counted", [f"len({_VISIBLE}.split(','))", "len(os.getenv('CUDA_VISIBLE_DEVICES', '').split(','))"]
)
@pytest.mark.parametrize(("read", "notes"), [(f"print({_VISIBLE})", 0), (f"ids = {_VISIBLE}", 1)])
def test_the_visible_gpus_are_a_rank_s_own_behind_the_start(counted: str, read: str, notes: int) -> None:
    """In front of it they are the job's."""
    script = f"import argparse, os\nimport torch.nn as nn\ndef main():\n    n = {counted}\n    if n > 1:\n"
    script += f"        net = nn.DataParallel(net)\n    {read}\nif __name__ == '__main__':\n"
    script += (
        f"    args = argparse.ArgumentParser().parse_args()\n    {_VISIBLE} = args.gpu\n    n = {counted}\n    main()\n"
    )
    result = convert_source(script, "train.py", Options())
    there = "    ddp.setup()\n    n = ddp.device_count()\n    if n > 1:\n        net = ddp.wrap_model(net)\n"
    assert f"{there}    {read}\nif __name__" in result.new_text
    assert f"    n = {counted}\n    main()\n" in result.new_text
    assert len(result.notes) == notes


@pytest.mark.parametrize(
    ("use", "stays"),
    [
        ("pass", True),
        ("print(number)", False),
        ("args.lr *= number", False),
        ("print(args.distributed_loss and number)", False),
    ],
)
def test_a_number_of_devices_that_only_the_script_s_own_ddp_reads_stays(use: str, stays: bool) -> None:
    script = f"""\
import argparse
import torch
import torch.distributed as dist
import torch.nn as nn
args = argparse.ArgumentParser().parse_args()

def main():
    number = torch.cuda.device_count() if torch.cuda.is_available() else 1
    if args.distributed:
        dist.init_process_group("nccl", world_size=number)
    work(number)

def work(number):
    net = nn.DataParallel(nn.Linear(4, 2))
    if not args.distributed or (args.distributed and args.rank % number == 0):
        torch.save(net.state_dict(), "net.pt")
    {use}

main()
"""
    new = convert_source(script, "train.py", Options(allow_ddp=True)).new_text
    assert ("    number = torch.cuda.device_count() if" in new) == stays
