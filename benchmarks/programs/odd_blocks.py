"""More blocks: what models do to themselves in forward, and parameters that are out of the ordinary."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .blocks import WIDTH, _linear
from .parts import BLOCKS


class _Given(nn.Module):
    """A module of two layers whose forward is a function."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layer, self.other = _linear(), _linear()
        self.function = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.function(self, x)
        return found


@BLOCKS.add("block")
def tied() -> nn.Module:
    """Two layers with one weight."""
    block = _Given(lambda self, x: self.other(F.softplus(self.layer(x))))
    block.other.weight = block.layer.weight
    return block


@BLOCKS.add("block")
def twice() -> nn.Module:
    """A layer that is used twice."""
    return _Given(lambda self, x: self.layer(self.layer(x).tanh()) + self.other(x))


@BLOCKS.add("block", what=("layer", "parameter"))
def unused(what: str) -> nn.Module:
    """Parameters that no replica uses."""
    block = _Given(lambda self, x: self.layer(x))
    if what == "parameter":
        block.nothing = nn.Parameter(torch.rand(3))
    return block


@BLOCKS.add("block", after=(False, True))
def frozen(after: bool) -> nn.Module:
    """A layer without gradients, behind or before one that has them."""
    block = _Given(lambda self, x: self.layer(self.other(x).tanh()))
    (block.layer if after else block.other).requires_grad_(False)
    return block


@BLOCKS.add("block", skips=(False, True))
def branch(skips: bool) -> nn.Module:
    """Another layer for other rows."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if float(x.detach()[:, 0].sum()) > 0:
            out: torch.Tensor = self.layer(x)
        else:
            out = x * 0.5 if skips else self.other(x).tanh()
        return out

    return _Given(forward)


@BLOCKS.add("block", "severs")
def branch_without_gradient() -> nn.Module:
    """Some rows have no gradient at all."""
    return _Given(lambda self, x: self.layer(x if float(x.detach()[0, 0]) > 0 else x.detach()) + self.other.bias)


@BLOCKS.add("block")
def detached() -> nn.Module:
    """A part without gradients, and one whose input has none."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = self.other(x)
        found: torch.Tensor = self.layer(x.detach()) + x.tanh() * fixed
        return found

    return _Given(forward)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("added", torch.zeros(1))
        self.register_buffer("calls", torch.tensor(0), persistent=False)
        self.added: torch.Tensor
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.added += 0.01 * x.detach().sum()
            self.calls += 1
        return x + 0.1 * self.added + 0.01 * self.calls


@BLOCKS.add("block")
def counting() -> nn.Module:
    """Buffers that forward writes into. (What it assigns gets lost in DataParallel alone.)"""
    return _Counting()


class _Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = _linear()
        self.bank = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.bank.mul_(0.9).add_(0.1 * x.detach().mean(0))
        self.gain.data.clamp_(0.5, 1.5)
        found: torch.Tensor = self.layer(x) * self.gain + self.bank.clone()
        return found


@BLOCKS.add("block")
def writing() -> nn.Module:
    """Writes into parameters, frozen and not."""
    return _Writing()


class _Scaled(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        made: dict[str, Any] = {
            "scalar": lambda: torch.tensor(1.5),
            "row": lambda: torch.rand(1, WIDTH) + 0.5,
            "float32": lambda: torch.rand(WIDTH, dtype=torch.float32) + 0.5,
            "bfloat16": lambda: torch.ones(WIDTH, dtype=torch.bfloat16),
        }
        self.scale = nn.Parameter(made[kind]())
        self.empty = nn.Parameter(torch.empty(0, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.to(x.dtype) + self.empty.sum()


@BLOCKS.add("block", kind=("scalar", "row", "float32"))
def scaled(kind: str) -> nn.Module:
    """A scalar, an empty and a narrower parameter."""
    return _Scaled(kind)


class _Turned(nn.Module):
    def __init__(self, real: bool) -> None:
        super().__init__()
        self.real = real
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH).t() * (1 if real else 1 + 0.5j))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.real:
            return x @ self.weight
        out = x.to(self.weight.dtype) @ self.weight
        return out.real + 0.5 * out.imag


@BLOCKS.add("block", "strided")
def transposed() -> nn.Module:
    """A parameter that isn't contiguous."""
    return _Turned(True)


@BLOCKS.add("block", "complex", "strided")
def complex_numbers() -> nn.Module:
    """A complex parameter."""
    return _Turned(False)


class _Lists(nn.Module):
    def __init__(self, named: bool) -> None:
        super().__init__()
        weights = [nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.4) for _ in range(3)]
        self.weights = nn.ParameterDict({f"w{i}": each for i, each in enumerate(weights)}) if named else None
        self.list = None if named else nn.ParameterList(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights: Any = self.list if self.weights is None else self.weights.values()
        for each in weights:
            x = (x @ each).tanh()
        return x


@BLOCKS.add("block", named=(False, True))
def parameter_list(named: bool) -> nn.Module:
    """Parameters in a list or a dictionary."""
    return _Lists(named)


@BLOCKS.add("block", "first", solves=(False, True))
def hook_that_removes_itself(solves: bool) -> nn.Module:
    """A hook on what forward makes, as in deep equilibrium models."""

    def forward(self: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            fixed = self.layer(x).tanh()
        new: Any = self.layer(fixed).tanh() + x
        if not new.requires_grad or torch.is_inference_mode_enabled():
            return new
        start = fixed.clone().requires_grad_()
        with torch.enable_grad():
            again = self.layer(start).tanh()

        def backward(grad: torch.Tensor) -> Any:
            self.hook.remove()
            if not solves:
                return grad * 0.5 + grad.tanh()
            return grad + 0.3 * torch.autograd.grad(again, start, grad, retain_graph=True)[0]

        self.hook = new.register_hook(backward)
        return new

    return _Given(forward)


@BLOCKS.add("block", "first", "inner", outside=(True, False), twice=(False, True))
def backward_in_forward(outside: bool, twice: bool) -> nn.Module:
    """A loss of its own, whose backward forward runs; of layers that the rest uses, too, or not."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and self.training:
            loss = self.layer(x.detach()).square().mean()
            loss.backward(retain_graph=twice)
            if twice:
                torch.autograd.backward([3 * loss])
        found: torch.Tensor = self.layer(x) if outside else self.other(x)
        return found

    return _Given(forward)


@BLOCKS.add("block", second=(True, False))
def gradient_in_forward(second: bool) -> nn.Module:
    """A step down an energy, whose gradient forward takes."""

    def forward(self: Any, x: torch.Tensor) -> Any:
        if torch.is_inference_mode_enabled():
            return self.layer(x)
        with torch.enable_grad():
            at = x if x.requires_grad and second else x.detach().requires_grad_()
            energy = F.softplus(self.layer(at)).square().sum()
            (slope,) = torch.autograd.grad(energy, at, create_graph=second)
        return x - 0.1 * slope + self.other.bias

    return _Given(forward)
