"""What `verify` once told users wrongly, or not at all: one test for each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from click.testing import Result
from commands import command

ONE_GPU = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.seen = nn.Linear(4, 3), nn.BatchNorm1d(3), 0
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x, names=()):
        FORWARD

net = nn.DataParallel(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)  # of what is unused, too
for x, y in DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 8, shuffle=True):
    output = net(x)
    loss = F.cross_entropy(output["out"] if isinstance(output, dict) else output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("%.6f" % loss.item(), LAST)
"""


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls `dp2ddp verify` on a script, with a conversion of it if one is given."""
    monkeypatch.chdir(tmp_path)

    def call(script: str, converted: str | None = None, *options: str) -> Result:
        tiny.lay_out(tmp_path, script)
        if converted is not None:
            (tmp_path / "train_ddp.py").write_text(converted)
            options = ("--converted", "train_ddp.py", *options)
        return command("verify", "train.py", *options)

    return call


def test_a_forward_that_asks_on_which_device_it_is(verify: Callable[..., Result]) -> None:
    """A rank's own GPU is number 0 to it, where replicas have numbers of their own."""
    asks = """class Asks(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2 if x.get_device() == 0 else 1)

torch.manual_seed(3)
"""
    script = tiny.ORIGINAL.replace("torch.manual_seed(3)\n", asks).replace("nn.Linear(4, HIDDEN)", "Asks(4, HIDDEN)")
    by_hand = (
        tiny.converted().replace("torch.manual_seed(3)\n", asks).replace("nn.Linear(4, HIDDEN)", "Asks(4, HIDDEN)")
    )
    result = verify(script, by_hand)
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("DIFFERENT step 1: what Sequential returns on rank 1 differs by ")


def test_replicas_that_may_meet_while_they_run_show_nothing(verify: Callable[..., Result]) -> None:
    own = "class Meeting(nn.DataParallel):\n    def replicate(self, *args):\n        return super().replicate(*args)\n"
    script = tiny.ORIGINAL.replace("torch.manual_seed(3)\n", f"torch.manual_seed(3)\n{own}")
    script = script.replace("nn.DataParallel(nn.S", "Meeting(nn.S")
    result = verify(script, tiny.edited(("        loss.backward()", "        (loss * 1.5).backward()")))
    assert (result.exit_code, "compare on GPUs" in result.stdout) == (4, True), result.output


@pytest.mark.parametrize(
    ("forward", "last", "why"),
    [
        ("p = next(self.parameters()); return self.norm(self.fc(x.to(p.device)))", "''", "fails in nn.DataParallel's"),
        ("self.seen += 1; return self.fc(x) * self.seen", "net.module.seen", "assigns Net.seen, which stays"),
        ("self.mean = 0.9 * self.mean + 0.1; return self.fc(x - self.mean)", "net.module.mean", "assigns Net.mean"),
        ("self.fc.bias.data = self.fc.bias * 0.5; return self.fc(x)", "''", "assigns Linear.bias, which stays"),
        ("self.now = self.fc(x); return self.now", "net.module.now.shape", "has no attribute 'now'"),
        ("return {'out': self.fc(x), 'at': ['%.3f' % v for v in x[:, 0]]}", "output['at'][0]", "can't be put together"),
    ],
)
def test_what_replicas_break_is_judged_by_one_gpu(
    verify: Callable[..., Result], forward: str, last: str, why: str
) -> None:
    script = ONE_GPU.replace("FORWARD", forward).replace("LAST", last)
    told = json.loads(verify(script, None, "--format", "json").stdout)
    assert (told["verdict"], told["reference"], len(told["steps"])) == ("agree", "one GPU", 3), told
    assert any(why in note and "compared with one GPU's training" in note for note in told["notes"]), told["notes"]


def test_a_model_that_is_wrapped_twice_is_judged_by_one_gpu(verify: Callable[..., Result]) -> None:
    """On GPUs the second replica's parameters aren't where the inner wrapper looks for them."""
    script = ONE_GPU.replace("FORWARD", "return self.norm(self.fc(x))").replace("LAST", "''")
    script = script.replace("nn.DataParallel(Net())", "nn.DataParallel(nn.DataParallel(Net()))")
    told = json.loads(verify(script, None, "--format", "json").stdout)
    assert (told["verdict"], told["reference"], len(told["steps"])) == ("agree", "one GPU", 3), told
    assert "can't run an nn.DataParallel that is within it" in "".join(told["notes"])


def test_one_gpu_draws_other_numbers_and_shows_nothing(verify: Callable[..., Result]) -> None:
    script = ONE_GPU.replace("FORWARD", "self.seen += 1; return F.dropout(self.fc(x)) * self.seen").replace(
        "LAST", "''"
    )
    result = verify(script)
    assert (result.exit_code, result.stdout.startswith("NOT SHOWN step ")) == (4, True), result.output
    assert "The model draws random numbers (dropout) for each row" in result.stdout


@pytest.mark.parametrize("lost", ["", "next(self.parameters()); "])  # with it one GPU is the reference
def test_a_backward_that_draws_shows_nothing(verify: Callable[..., Result], lost: str) -> None:
    forward = lost + "out = self.fc(x); out.register_hook(torch.rand_like); return out"
    result = verify(ONE_GPU.replace("FORWARD", forward).replace("LAST", "''"))
    assert (result.exit_code, "A backward draws random numbers" in result.stdout) == (4, True), result.output


def test_what_one_gpu_returns_can_be_changed_in_place(verify: Callable[..., Result]) -> None:
    forward = "self.seen += 1; return self.fc(x) * self.seen"
    script = ONE_GPU.replace("FORWARD", forward).replace("LAST", "net.module.seen")
    result = verify(script.replace("    loss = ", "    output *= 2\n    loss = "))
    assert (result.exit_code, "They agree (with one GPU's training): 3 " in result.output) == (0, True), result.output


def test_a_mistake_is_none_of_one_gpu_either(verify: Callable[..., Result]) -> None:
    script = ONE_GPU.replace("FORWARD", "self.seen += 1; return self.fc(x) * self.seen").replace(
        "LAST", "net.module.seen"
    )
    told = json.loads(verify(script, tiny.converted(script).replace("lr=0.1", "lr=0.2"), "--format", "json").stdout)
    assert (told["verdict"], told["findings"][0]["kind"]) == ("differ", "setting")


def test_batch_norm_over_all_ranks_is_seen_on_a_cpu(verify: Callable[..., Result]) -> None:
    script = ONE_GPU.replace("FORWARD", "return self.norm(self.fc(x))").replace("LAST", "''")
    text = tiny.converted(script)
    assert "wrap_model(Net())" in text
    told = json.loads(verify(script, text.replace("(Net())", "(Net(), sync_bn=True)"), "--format", "json").stdout)
    assert (told["verdict"], told["findings"][0]["kind"]) == ("differ", "output")


def test_a_loop_until_a_time_has_passed_ends(verify: Callable[..., Result]) -> None:
    waits = "begun = time.time()\nwhile time.time() - begun < 1.5:\n    pass\n"
    begin = time.monotonic()
    result = verify(tiny.ORIGINAL + waits, None, "--timeout", "60")
    assert (result.exit_code, time.monotonic() - begin < 50) == (0, True), result.output


def test_warnings_of_the_runtime_are_shown_at_the_end(verify: Callable[..., Result]) -> None:
    script = ONE_GPU.replace("FORWARD", "self.log.append(1); return self.fc(x)").replace("LAST", "''")
    script = script.replace("self.register", "self.log = []; self.register")
    result = verify(script)
    last = result.stdout.splitlines()[-1]
    assert result.exit_code == 0, result.output
    assert last.startswith("the converted script warns: train.py (converted):"), result.output
    assert "appends to" in last


def test_a_leaf_that_is_no_parameter_has_no_cause(verify: Callable[..., Result]) -> None:
    """Its gradient is each rank's own, or the whole one: it was called reduced twice."""
    leaf = tiny.ORIGINAL.replace("optimizer = ", "shift = torch.zeros(2, requires_grad=True)\noptimizer = ")
    leaf = leaf.replace("net.parameters()", "[*net.parameters(), shift]")
    leaf = leaf.replace("output = net(x)", "output = net(x) + shift")
    wrong = tiny.converted(leaf).replace("optimizer.step()", "shift.grad[0] += 1\n        optimizer.step()")
    result = verify(leaf, wrong)
    first = result.stdout.splitlines()[0]
    assert first.startswith("DIFFERENT step 1: the gradient of parameter 4 has norm "), result.output
    assert "; " not in first


def test_lines_that_a_conversion_moves_and_long_values(verify: Callable[..., Result]) -> None:
    logs = "import logging, sys\nlogging.basicConfig(format='%(lineno)d %(message)s', stream=sys.stdout)\n"
    script = tiny.ORIGINAL + logs + "logging.warning('done')\n"
    assert verify(script).exit_code == 0
    result = verify(script, tiny.converted(script) + "print('x' * 100_000)\n")
    assert result.exit_code == 1
    assert len(result.stdout) < 1000


@pytest.mark.parametrize("how", ["'..'", "os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')"])
def test_modules_beside_the_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    for name in ("project", "utils", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "utils" / "helper.py").write_text("VALUE = 3\n")
    (tmp_path / "results" / "log.txt").write_text("mine")
    begin = f"import os, sys\nsys.path.append({how})\nfrom utils.helper import VALUE\n"
    end = "os.makedirs('../results', exist_ok=True)\nopen('../results/log.txt', 'w').write('ours')\n"
    tiny.lay_out(tmp_path / "project", begin + tiny.ORIGINAL + end)
    monkeypatch.chdir(tmp_path / "project")
    result = command("verify", "train.py")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "results" / "log.txt").read_text() == "mine"


def test_gpus_that_are_not_there_are_asked_for_in_vain(verify: Callable[..., Result]) -> None:
    result = verify(tiny.ORIGINAL, None, "--device", "cuda", "--nproc", "9")
    assert (result.exit_code, "GPU(s) here, 9 asked for" in result.stderr) == (2, True), result.output
