"""Small models and training loops, run on ranks and under the oracle by the tests."""

from __future__ import annotations

from typing import Any, Callable

import torch
from dp2ddp_runtime import streams as rng
from dp2ddp_runtime.world import world
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

Parameters = list[torch.Tensor]


class Net(nn.Module):
    """A small CNN with BatchNorm, whose writes no version tells; optionally dropout; and what gets no gradient."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(4 * 36, 10)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        x = F.batch_norm(self.conv(x), norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training)
        return self.fc(self.drop(F.relu(x)).flatten(1))


def device() -> torch.device:
    """A rank's device, as scripts call it on all ranks alike."""
    if world.groups is not None:
        return world.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def snapshot(net: nn.Module) -> Parameters:
    """All values of a model, on the CPU: whoever gets them has no devices."""
    return [value.detach().cpu().clone() for value in net.state_dict().values()]


def difference(left: Parameters, right: Parameters) -> float:
    """The largest difference, relative to the largest value of the tensor it is in."""
    pairs = [(a.double(), b.double()) for a, b in zip(left, right)]
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item() for a, b in pairs)


def distance(left: Parameters, right: Parameters) -> float:
    """The difference of all values together, relative to their norm."""
    a, b = (torch.cat([value.double().flatten() for value in values]) for values in (left, right))
    return ((a - b).norm() / b.norm()).item()


def data(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(rows, 1, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(10, (rows,), generator=generator)


Wrap = Callable[[nn.Module], Any]


def data_parallel(n: int) -> Wrap:
    """`nn.DataParallel`: torch's own where this process has (pretend) devices, else emulated on the CPU.

    All models that one of them wraps draw from the same streams, one for each replica, as a rank has one.
    """
    own = [rng.Stream(rank=replica) for replica in range(n)]
    if device().type == "cpu":
        emulated_kind: Any = type("Oracle", (EmulatedDataParallel,), {"streams": own})
        return lambda net: emulated_kind(net, n=n)
    from pretend_cuda.replicas import OracleDataParallel

    kind: Any = type("Oracle", (OracleDataParallel,), {"streams": own})
    return lambda net: kind(net.to(device()), list(range(n)))


def seeded(factory: Callable[[], nn.Module], dtype: torch.dtype, seed: int = 0) -> nn.Module:
    rng.seed_everything(seed)
    return factory().to(dtype)
