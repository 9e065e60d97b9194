"""Fixtures on two pretend devices: the original under torch's own DataParallel, its conversion on two ranks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import fixture_data
import pytest
import torch
from starts import Warm
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dp2ddp.verify.compare import printed
from pretend_cuda import install
from pretend_cuda.replicas import OracleDataParallel

STEPS = 12  # of each script's optimizers together: float32 stays that close for so long
HEAD = "import sys\nsys.path.insert(0, {!r})\nfrom pretend_cuda import test_pretended_fixtures\n"
#: The parameters' norms after each step.
norms: list[list[float]] = []


def begin(is_original: bool) -> None:
    """Before a fixture does anything: give it devices, and note its steps."""
    torch.set_num_threads(1)
    install(2)
    if is_original:
        nn.DataParallel = OracleDataParallel  # type: ignore[misc]

    def note(optimizer: Any, args: Any, kwargs: Any) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        assert all(param.device.type == "cuda" for param in params)
        norms.append([param.detach().double().norm().item() for param in params])
        if len(norms) == STEPS:
            tell()
            sys.exit()

    register_optimizer_step_post_hook(note)


def tell() -> None:
    """Print what each rank has noted."""
    assert torch.cuda.device_count() == 2
    runtime = sys.modules.get("dp2ddp_runtime")
    print(json.dumps(runtime.gather(norms) if runtime else [norms]))


def train(warm: Warm, script: Path, data: Path, folder: Path) -> tuple[list[Any], str]:
    """What each rank of a fixture, or its original, has noted; and what is printed."""
    is_original = script.name == "train.py"
    head = f"{HEAD.format(str(script.parent))}test_pretended_fixtures.begin({is_original})\n"
    text = re.sub("^import ", f"{head}import ", script.read_text(), count=1, flags=re.MULTILINE)
    folder.mkdir()
    (folder / "train.py").write_text(f"{text}\ntest_pretended_fixtures.tell()\n")
    arguments = ["train.py", "--data", data, "--out", "out", "--epochs", "1"]
    done = warm.start(*arguments, nproc=2, cwd=folder, env={"DP2DDP_DEVICE": ""}, forked=True)
    assert done.returncode == 0, done.stderr
    *said, told = done.stdout.splitlines(keepends=True)
    return json.loads(told), "".join(said)


#: Loaders, losses, models, optimizers and devices in other ways than the runtime's tests have them.
@pytest.mark.parametrize("name", ["mnist_contrastive", "mnist_gan", "mnist_rnn"])
def test_a_fixture_trains_on_devices_as_under_data_parallel(
    name: str, smaller_digits: Path, tmp_path: Path, warm: Warm
) -> None:
    [wanted], said = train(warm, fixture_data.original(name), smaller_digits, tmp_path / "original")
    ranks, said_by_ranks = train(warm, fixture_data.golden(name), smaller_digits, tmp_path / "converted")
    assert len(wanted) >= 5
    assert ranks == [ranks[0]] * 2
    assert len(ranks[0]) == len(wanted)
    for step, expected in zip(ranks[0], wanted):
        assert step == pytest.approx(expected, rel=2e-4, abs=1e-6)
    apart = printed.differences(said, said_by_ranks)
    assert [line for line in apart if line.places is None or line.places > 1] == []
