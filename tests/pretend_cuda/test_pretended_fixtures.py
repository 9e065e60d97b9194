"""Every fixture on two pretend devices: the original under torch's own DataParallel, its conversion on two ranks."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import fixture_data
import pytest
import torch
from children import call
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dp2ddp.verify.compare import printed
from pretend_cuda.replicas import OracleDataParallel

STEPS = 12  # of each script's optimizers together: float32 stays that close for so long


class EnoughError(Exception):
    """A script has made as many steps as are compared."""


def trained(script: Path, data: Path, folder: Path, oracle: bool) -> tuple[list[list[float]], str]:
    """The parameters' norms after each step, and what is printed."""
    if oracle:
        nn.DataParallel = OracleDataParallel  # type: ignore[misc]
    norms: list[list[float]] = []

    def note(optimizer: Any, args: Any, kwargs: Any) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        assert all(param.device.type == "cuda" for param in params)
        norms.append([param.detach().double().norm().item() for param in params])
        if len(norms) == STEPS:
            raise EnoughError

    register_optimizer_step_post_hook(note)
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    length = ["--max-iter", "12"] if "iterations" in script.parent.name else ["--epochs", "1"]
    sys.argv = [str(script), "--data", str(data), "--out", "out", *length]
    sys.path.insert(0, str(script.parent))
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(EnoughError):
        runpy.run_path(str(script), run_name="__main__")
    assert torch.cuda.device_count() == 2
    return norms, text.getvalue()


#: Loaders, losses, models, optimizers and devices in other ways than the runtime's tests have them.
NAMES = "mnist_amp_accumulate mnist_contrastive mnist_gan mnist_rnn".split()


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_trains_on_devices_as_under_data_parallel(
    name: str, smaller_digits: Path, tmp_path: Path, unused_port: str
) -> None:
    at = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port}
    at["PYTHONHASHSEED"] = "0"
    wanted, said = call(trained, fixture_data.original(name), smaller_digits, tmp_path / "a", True)
    ranks = call(trained, fixture_data.golden(name), smaller_digits, tmp_path / "b", False, ranks=2, **at)
    assert len(wanted) >= 5
    for norms, _ in ranks:
        assert norms == ranks[0][0]
        for step, expected in zip(norms, wanted):
            assert step == pytest.approx(expected, rel=2e-4, abs=1e-6)
    assert len(ranks[0][0]) == len(wanted)
    assert [line for line in printed.differences(said, ranks[0][1]) if line.places is None or line.places > 1] == []
