"""`dp2ddp verify --device cuda` without a GPU: both sides on pretend CUDA devices, where a wrong device is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import test_foreign
import tiny
import torch
from click.testing import Result
from commands import command
from test_cuda import MIXED

from dp2ddp.pretend_cuda import build
from dp2ddp.verify.run import runs
from dp2ddp.verify.run.run_options import Options
from dp2ddp.verify.start import client
from dp2ddp.verify.verification import chosen_devices

HEALTHY = tiny.ORIGINAL.replace("nn.ReLU()", "nn.ReLU(), nn.Dropout(0.2)").replace("5, 2", "HIDDEN, 2")
_BEFORE = 'import argparse, torch; print("before the start"); argparse.ArgumentParser().parse_args()\n'
HEALTHY = HEALTHY.replace("import torch\n", _BEFORE, 1) + 'torch.save(net, "whole.pt")\n'
#: Names the devices that are used.
SEEN = """
import torch
import torch.nn as nn

class Net(nn.Linear):
    def forward(self, x):
        print(x.device, self.weight.device, torch.cuda.current_device(), flush=True)
        return super().forward(x)

net = nn.DataParallel(Net(2, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
net(torch.ones(4, 2)).sum().backward()
optimizer.step()
print(torch.cuda.device_count(), net.module.weight.device, torch.cuda.get_device_name(0))
"""
MOVES = "x, y = x.cuda(), y.cuda()"


pretended = pytest.mark.usefixtures("pretended")
Verify = Callable[..., Result]


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Calls `dp2ddp verify train.py` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)  # here, where it is decided what is used
    tiny.lay_out(tmp_path, HEALTHY)

    def call(*arguments: str, device: str = "cuda") -> Result:
        return command("verify", "train.py", "--device", device, *arguments)

    return call


def mistaken(name: str, text: str, old: str, new: str) -> int:
    """Write a script with a mistake; the number of its line."""
    assert text.count(old) == 1, text
    text = text.replace(old, new)
    Path(name).write_text(text)
    return text[: text.index(new)].count("\n") + 1


@pretended
@pytest.mark.parametrize("nproc", [2, 3])
def test_a_healthy_script_agrees(verify: Verify, nproc: int) -> None:
    result = verify("--nproc", str(nproc))
    assert result.exit_code == 0, result.output
    assert f"nn.DataParallel on {nproc} pretend GPUs" in result.stdout
    assert f"CUDA is pretended: this machine has fewer than {nproc} GPU(s)" in result.output
    assert "9 optimizer steps" in result.stdout
    assert "2 files" in result.stdout


@pretended
def test_each_rank_sees_one_device_and_the_original_all(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SEEN)
    (tmp_path / "other.py").write_text(tiny.converted(SEEN))
    options = Options(replicas=2, pretended=True)
    said = []
    for name in ("one", "other"):
        with mock.patch.dict("os.environ", DP2DDP_DEVICE="cpu"):  # what is asked for on the command line counts
            running = runs.start(
                tmp_path / f"{name}.py", [], tmp_path / name, options, client.ForkServer(), original=name == "one"
            )
        with running:
            run = running.wait()
        assert run.exit_code == 0, run.stderr
        said.append(run.stdout.splitlines())
        assert run.recordings()[0].split == (name == "one")
    last = "2 cuda:0 Pretend CUDA"
    assert said == [["cuda:0 cuda:0 0", "cuda:1 cuda:1 1", last], ["cuda:0 cuda:0 0", last]]


SAME_DEVICE, NO_DEVICE = "Expected all tensors to be on the same device", "invalid device ordinal"


@pretended
@pytest.mark.parametrize(
    ("old", "new", "message", "below"),
    [
        ("output = net(x)", "output = net(x) + torch.zeros(2)", SAME_DEVICE, 0),
        (MOVES, "x, y = x.cuda(), y.cuda(1)", SAME_DEVICE, 3),  # at the loss
        (MOVES, "x, y = x.cuda(), y.cuda(2)", NO_DEVICE, 0),
    ],
)
def test_a_device_mistake_is_shown_with_its_line(verify: Verify, old: str, new: str, message: str, below: int) -> None:
    line = mistaken("wrong.py", tiny.converted(HEALTHY), old, new)
    result = verify("--converted", "wrong.py")
    assert result.exit_code == 2, result.output
    assert "the converted script could not run: RuntimeError: " in result.stderr
    assert message in result.stderr
    assert f'File "wrong.py", line {line + below}, in <module>' in result.stderr
    assert below or new in result.stderr
    assert "pretend_cuda" not in result.stderr
    seen_without = verify("--converted", "wrong.py", device="cpu")
    assert seen_without.exit_code == 0, seen_without.output  # there the CPU is every device


@pretended
def test_a_device_mistake_of_the_original_is_the_originals(verify: Verify) -> None:
    line = mistaken("train.py", HEALTHY, MOVES, "x = x.cuda()")
    result = verify()
    assert result.exit_code == 2, result.output
    assert "the original script could not run: RuntimeError: " in result.stderr
    assert f'File "train.py", line {line + 3}, in <module>' in result.stderr


@pretended
def test_half_precision_is_the_scripts(verify: Verify) -> None:
    Path("train.py").write_text(MIXED)
    result = verify("--format", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["device"], told["pretended"]) == ("cuda", True)
    assert "compared in float32 and float16" in told["notes"]
    # Of 65536 times 4 a float16 overflows: GradScaler leaves the first step out, as on a GPU.
    assert [each["relative_difference"] for each in told["steps"]] == [0.0] * 5


@pretended
@pytest.mark.parametrize("wrong", ["", "x, y = x.cuda(), y.cuda(0)"])
def test_scripts_with_ddp_by_hand_choose_their_device_themselves(verify: Verify, wrong: str) -> None:
    Path("train.py").write_text(test_foreign.script(test_foreign.ORIGINAL, MEAN="loss.item()", FIRST="True"))
    line = mistaken("hand.py", test_foreign.script(test_foreign.BY_HAND), MOVES, wrong or MOVES)
    result = verify("--converted", "hand.py")
    assert result.exit_code == (2 if wrong else 0), result.output
    if wrong:
        assert SAME_DEVICE in result.stderr
        assert f'File "hand.py", line {line + 2}' in result.stderr


def test_without_a_compiler_one_line_says_so(verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = verify()
    assert result.exit_code == 2
    assert result.stderr.startswith("dp2ddp: --device cuda: ")
    assert "2 asked for, and pretend CUDA " in result.stderr
    assert "g++" in result.stderr or "CUDA build of torch" in result.stderr or "made for torch" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_machines_own_devices_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: Any = mock.Mock()
    monkeypatch.setattr(build, "compiled", compiled)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    on_gpus = Options(2, cuda=True)
    assert chosen_devices(on_gpus) is on_gpus
    assert chosen_devices(Options(3)) == Options(3)
    assert not compiled.called
    pretend = chosen_devices(Options(3, cuda=True))
    assert (pretend.cuda, pretend.pretended, pretend.gpus) == (False, True, "pretend GPUs")
    assert compiled.called
