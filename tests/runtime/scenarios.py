"""What scripts do with a wrapped model that the random programs (`benchmarks/programs`) don't."""

from __future__ import annotations

import random
from typing import Any, Callable

import numpy as np
import torch
from dp2ddp_runtime import streams
from modules import Made
from torch import nn
from torch.utils.checkpoint import checkpoint

Tensors = list[Any]
Wrapper = Callable[..., Any]
Scenario = Callable[[Wrapper], Tensors]

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def grads(net: nn.Module) -> Tensors:
    return [None if param.grad is None else param.grad.clone() for param in net.parameters()]


@scenario
def layers_that_would_synchronise(wrap: Wrapper) -> Tensors:
    """`SyncBatchNorm` is BatchNorm where no process group is, as with `nn.DataParallel`; beside a wrapped part, too."""

    class Parted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.SyncBatchNorm(4)
            self.part = wrap(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4, momentum=None)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(self.norm(x)).square()

    net = Parted()
    result = []
    for rows in (9, 8):
        out = net(torch.rand(rows, 4))
        out.mean().backward()
        result += [out, *grads(net), *net.buffers()]
    return [*result, net.eval()(torch.rand(3, 4))]


@scenario
def another_dimension(wrap: Wrapper) -> Tensors:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 3)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> Any:
            self.rnn.flatten_parameters()
            return self.rnn(x, hidden)

    net = wrap(Recurrent(), dim=1)
    out, hidden = net(torch.rand(6, 5, 4), torch.zeros(1, 5, 3))
    out, hidden = net(torch.rand(6, 5, 4), hidden)
    (out.sum() * hidden.mean()).backward()
    return [out, hidden, *grads(net)]


@scenario
def buffers_changed_where_a_checkpoint_runs_the_model_again(wrap: Wrapper) -> Tensors:
    """A single row's replica does so itself, and stops before its forward is over."""

    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.added += x.detach().sum()
        return x + self.added

    net = wrap(nn.Sequential(nn.Dropout(0.5), Made(counted, added=torch.zeros(1)), nn.Linear(4, 2), nn.Tanh()))
    result: Tensors = []
    for rows in (5, 1, 1, 6):
        x = torch.rand(rows, 4, requires_grad=True)
        checkpoint(net, x, use_reentrant=False).square().sum().backward()
        result += [x.grad, *grads(net), *(value.clone() for value in net.buffers())]
    return result


@scenario
def buffers_written_past_their_versions(wrap: Wrapper) -> Tensors:
    """A codebook by `.data`, and statistics that aren't called as BatchNorm's are."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        self.rows.data.add_(len(x))
        self.codes.data.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return nn.functional.batch_norm(h, self.moving, self.spread, training=True) - self.codes

    zeros = {name: torch.zeros(3) for name in ("codes", "moving", "spread")}
    net = wrap(Made(forward, layer=nn.Linear(4, 3), rows=torch.tensor(0), **zeros))
    result: Tensors = []
    for rows in (9, 8, 9):
        result += [net(torch.rand(rows, 4)), *(value.clone() for value in net.buffers())]
    return result


@scenario
def kinds_of_tensors(wrap: Wrapper) -> Tensors:
    def forward(self: Any, x: torch.Tensor) -> Any:
        out = self.layer(x)
        empty = x[:, :0]
        turned = torch.rand(3, len(x)).t()
        return out.bfloat16(), out.to(torch.complex64).conj(), x > 0.5, x.long(), empty, turned, x.half(), x[:1, 0]

    net = wrap(Made(forward))
    out = net(torch.rand(7, 4))
    out[1].abs().sum().backward()
    return [*out, *grads(net)]


@scenario
def numbers_of_other_generators_in_forward(wrap: Wrapper) -> Tensors:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        # As many as there are rows: what one rank draws another one doesn't.
        noise = [random.gauss(0, 1) + np.random.randn() + random.random() * np.random.rand() for _ in range(len(x))]
        return self.layer(x) * torch.tensor(noise)[:, None] + (random.random() if len(x) == 3 else 0)

    net = wrap(Made(forward))
    result: Tensors = []
    for rows in (6, 5, 1, 7):
        net(torch.rand(rows, 4)).square().sum().backward()
        shared = [random.gauss(0, 1), np.random.randn(), random.random(), np.random.rand()]
        result += [*grads(net), torch.tensor(shared)]
    with torch.no_grad():
        return [*result, net(torch.rand(5, 4)), torch.tensor(random.random())]


def run_all(wrap: Wrapper) -> dict[str, Tensors]:
    """Every scenario from the same seed, in double precision."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    results = {}
    try:
        for name, function in SCENARIOS.items():
            streams.seed_everything(len(name))
            results[name] = [_plain(value) for value in function(wrap)]
    finally:
        torch.set_default_dtype(torch.float32)
    return results


def _plain(value: Any) -> Any:
    return value.detach().clone().resolve_conj() if isinstance(value, torch.Tensor) else value
