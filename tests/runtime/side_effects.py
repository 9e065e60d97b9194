"""More scenarios: models that change themselves in their forward."""

from __future__ import annotations

from typing import Any

import torch
from scenarios import Function, Tensors, Wrapper, grads, scenario
from torch import nn
from torch.nn import functional as F  # noqa: N812


@scenario
def forward_that_replaces_data_as_its_rows_say(wrap: Wrapper) -> Tensors:
    """On some replicas only, with several forwards between two steps."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 10:
            self.other.weight.data = self.other.weight.data * 2
        return self.layer(x) + self.other(x)

    net = wrap(Function(forward))
    result: Tensors = []
    for who in (0, 4, 3, 6):
        x = torch.rand(8, 4)
        x[who, 0] = 11
        net.zero_grad()
        (net(torch.rand(8, 4)).square().sum() + net(x).sum() + net(x * 0.1).sum()).backward()
        result += grads(net)
    return result


class Sloppy(nn.Module):
    """Assigns to itself in its forward, and writes in place: only that, of its first replica, is to stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.code = nn.Embedding(4, 4)
        self.u = nn.Parameter(torch.rand(4), requires_grad=False)
        self.bank = nn.Parameter(torch.zeros(3, 4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("late", torch.zeros(4))
        self.gain = nn.Parameter(torch.rand(4))
        self.steps = 0
        self.layer.last = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = F.normalize(self.layer.weight.data @ self.u.data, dim=0)
        self.u.data = F.normalize(self.layer.weight.data.t() @ v, dim=0)
        mean = x.detach().mean(0)
        self.bank.data[self.steps % 3] += mean
        self.gain.data.mul_(0.9)
        self.seen.mul_(0.9).add_(mean)
        self.late.data = self.late + mean
        out = self.layer(x) / self.u.norm() + self.bank.sum(0) + self.seen + self.late + self.layer.last + self.steps
        self.steps += 1
        self.layer.last = mean
        if not hasattr(self, "more"):
            self.more = nn.Linear(4, 4)
        self.code.weight = nn.Parameter(self.code.weight * 0.5)
        self.register_buffer("another", mean)
        return (out + self.code.weight[0] + v) * self.bank.mean(0) * self.seen * self.gain


@scenario
def side_effects_of_forward(wrap: Wrapper) -> Tensors:
    net = wrap(Sloppy())
    result: Tensors = []
    for step in range(12):
        if step in (3, 5):
            net.train(step == 5)
        with torch.set_grad_enabled(step != 4):
            out = net(torch.rand(6 if step != 7 else 1, 4))
        if out.requires_grad:
            out.pow(2).sum().backward()
            with torch.no_grad():
                net.module.layer.weight -= 0.01 * net.module.layer.weight.grad
        module = net.module
        result += [out, *grads(net), *(value.clone() for value in net.state_dict().values()), module.layer.last]
        result += [torch.tensor([module.steps, hasattr(module, "more")])]
    return result
