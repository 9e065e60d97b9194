"""Tensors on pretend devices refuse what lies elsewhere, which is what a run on the CPU doesn't show."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from starts import Warm
from torch import nn

from pretend_cuda import install


def mixing() -> None:
    on, off = torch.ones(2, 2, device="cuda:0"), torch.ones(2, 2)
    wrong = "Expected all tensors to be on the same device"
    for mix in (
        lambda: on + off,
        lambda: off + on,
        lambda: off.add_(on),
        lambda: on @ torch.ones(2, 2, device="cuda:1"),
        lambda: torch.cat([on, off]),
        lambda: F.cross_entropy(on, torch.tensor([0, 1])),
        lambda: nn.Linear(2, 2).cuda()(off),
        lambda: nn.Embedding(2, 2).cuda()(torch.tensor([1])),
        lambda: nn.BatchNorm1d(2).cuda()(off),
        lambda: torch._foreach_add([on], [off]),
    ):
        with pytest.raises(RuntimeError, match=wrong):
            mix()
    with pytest.raises(IndexError, match="same device as the indexed tensor"):
        off[torch.tensor([1], device="cuda")]
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        on.numpy()
    assert (on * torch.tensor(2.0)).device == on.device  # a number goes along with any device


def test_devices_do_not_mix(warm: Warm) -> None:
    done = warm.start(__file__)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    install(2)
    mixing()
