"""Which questions for the number of devices are asked about the job."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = "import torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
_N = "torch.cuda.device_count()"


@pytest.mark.parametrize("test", [f"{_N} > 0", f"{_N} >= 1", f"{_N} != 0", f"{_N} == 0", f"{_N} < 1", f"not {_N}", _N])
def test_whether_there_is_a_gpu_each_rank_sees_itself(test: str) -> None:
    """On CPU ranks there is none, however many they are."""
    line = f"device = 'cuda' if {test} else 'cpu'\n"
    assert convert_source(_HEAD + line, "train.py", Options()).new_text.endswith(line)


@pytest.mark.parametrize("test", [f"{_N} > 1", f"{_N} >= 2", f"0 < {_N} < 3", f"{_N} == 1", f"args.n > {_N}"])
def test_how_many_there_are_the_job_knows(test: str) -> None:
    new = convert_source(f"{_HEAD}if {test}:\n    pass\n", "train.py", Options()).new_text
    assert f"if {test.replace(_N, 'ddp.device_count()')}:" in new


def test_torch_accelerator_asks_for_the_same_devices() -> None:
    lines = "torch.accelerator.set_device_index(1)\nif torch.accelerator.device_count() > 1:\n    pass\n"
    new = convert_source(_HEAD + lines, "train.py", Options()).new_text
    assert "torch.accelerator.set_device_index(ddp.device())\nif ddp.device_count() > 1:" in new
    wrap = "net = nn.DataParallel(net, list(range(torch.accelerator.device_count())))\n"
    assert "ddp.setup()\n" in convert_source(_HEAD + wrap, "train.py", Options()).new_text


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
