"""Blocks of models, from (rows, WIDTH) to (rows, WIDTH).

Tags: `first` can't be differentiated twice; `reentrant` can't be asked by `autograd.grad`; `level` makes gradients
vanish but for rounding; `pairs` needs two rows in training; `sparse` has sparse gradients; `not_copied` can't be
copied; `severs` may give its input no gradient; `strided` has parameters that aren't contiguous; `inner` runs a
backward in forward.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from .parts import add

WIDTH = 4
Tensor = Any  # torch's methods have no types
Forward = Callable[[Any, Tensor], Tensor]


class Given(nn.Module):
    """A module whose forward is a function of it and of its input."""

    def __init__(self, forward: Forward, **own: Any) -> None:
        super().__init__()
        for name, each in own.items():
            setattr(self, name, each)
        self.function = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the function returns."""
        found: torch.Tensor = self.function(self, x)
        return found


def _linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias)


def _two(forward: Forward) -> Any:
    """A module of two layers."""
    return Given(forward, layer=_linear(), other=_linear())


# --- torch's own layers ---------------------------------------------------------------------------------------------


_LAYERS: dict[str, Callable[[], Any]] = {
    "Linear": _linear,
    "Linear without bias": lambda: _linear(bias=False),
    **{name: getattr(nn, name) for name in ("Tanh", "Softplus", "GELU", "Sigmoid")},
    "ReLU": lambda: nn.Sequential(_linear(), nn.ReLU()),
    "LeakyReLU": lambda: nn.Sequential(_linear(), nn.LeakyReLU()),
    "ELU": lambda: nn.Sequential(_linear(), nn.ELU()),
    # These write into what a linear layer made.
    "ReLU in place": lambda: nn.Sequential(_linear(), nn.ReLU(inplace=True)),
    "LeakyReLU in place": lambda: nn.Sequential(_linear(), nn.LeakyReLU(inplace=True)),
    "ELU in place": lambda: nn.Sequential(_linear(), nn.ELU(inplace=True)),
    # Random numbers of each replica's own.
    "Dropout": lambda: nn.Dropout(0.3),
    "AlphaDropout": lambda: nn.AlphaDropout(0.3),
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    # Buffers that each forward writes.
    "spectral_norm": lambda: parametrizations.spectral_norm(_linear()),
    "spectral_norm by hooks": lambda: nn.utils.spectral_norm(_linear()),
}


@add("block", kind=tuple(_LAYERS))
def layer(kind: str) -> Any:
    """A layer of each row."""
    return _LAYERS[kind]()


@add("block", "level", "pairs", momentum=(0.1, None), affine=(True, False), track=(True, False))
def batch_norm(momentum: float | None, affine: bool, track: bool) -> Any:
    """Statistics of each replica's rows."""
    return nn.BatchNorm1d(WIDTH, momentum=momentum, affine=affine, track_running_stats=track)


@add("block", not_copied=(False, True))
def weight_norm(not_copied: bool) -> Any:
    """A weight made of two parameters; of the old kind, which deepcopy doesn't take."""
    return (nn.utils.weight_norm if not_copied else parametrizations.weight_norm)(_linear())


@add("block")
def parametrized() -> Any:
    """A parametrization of the script's own."""
    layer = _linear()
    parametrize.register_parametrization(
        layer, "weight", Given(lambda self, weight: weight.triu() - weight.triu(1).t())
    )
    return layer


@add("block", "first", kind=("GRU", "LSTM"), layers=(1, 2))
def recurrent(kind: str, layers: int) -> Any:
    """An RNN, which keeps its weights in a list, too."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        return self.rnn(x.reshape(len(x), 2, 2))[0][:, -1]

    return Given(forward, rnn=getattr(nn, kind)(2, WIDTH, num_layers=layers, batch_first=True))


def _numbers(x: Tensor) -> Tensor:
    return (x[:, :2].detach() * 5).long().abs() % 6


@add("block", sparse=(False, True), padding=(False, True))
def embedding(sparse: bool, padding: bool) -> Any:
    """An embedding, looked up by what the rows hold."""
    words = nn.Embedding(6, WIDTH, sparse=sparse, padding_idx=1 if padding else None)
    return Given(lambda self, x: x + self.words(_numbers(x)).sum(1), words=words)


@add("block", "first", sparse=(False, True))
def embedding_bag(sparse: bool) -> Any:
    """A bag of embeddings."""
    return Given(lambda self, x: x + self.words(_numbers(x)), words=nn.EmbeddingBag(6, WIDTH, sparse=sparse))


@add("block")
def convolution() -> Any:
    """A convolution, with views around it."""
    return Given(lambda self, x: self.conv(x.reshape(len(x), 2, 2)).flatten(1), conv=nn.Conv1d(2, 2, 3, padding=1))


@add("block", "first", "level", weights=(True, False), between_rows=(False, True))
def attention(weights: bool, between_rows: bool) -> Any:
    """Attention within each row, or between a replica's rows."""

    def forward(self: Any, x: Tensor) -> Tensor:
        words = x[None] if between_rows else x.reshape(len(x), 2, 2)
        return x + self.attend(words, words, words, need_weights=weights)[0].reshape(x.shape)

    return Given(forward, attend=nn.MultiheadAttention(WIDTH if between_rows else 2, 2, batch_first=True))


# --- graphs ---------------------------------------------------------------------------------------------------------


def _checkpointed(drops: bool, forward: Forward) -> Any:
    inner = nn.Sequential(_linear(), nn.Tanh(), nn.Dropout(0.3 if drops else 0.0), _linear())
    return Given(forward, inner=inner, last=_linear())


@add("block", "first", drops=(False, True))
def checkpointed(drops: bool) -> Any:
    """A part that is computed again in backward."""
    return _checkpointed(drops, lambda self, x: self.last(checkpoint(self.inner, self.last(x), use_reentrant=False)))


@add("block", "first", "reentrant", "perhaps", drops=(False, True))
def checkpointed_with_a_backward_of_its_own(drops: bool) -> Any:
    """The old kind of checkpoint, whose backward runs another one."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x if x.requires_grad else x + self.last.bias, use_reentrant=True)

    return _checkpointed(drops, forward)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x**3 / 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.square() * 0.75 * 1.01


@add("block", "perhaps")
def own_function() -> Any:
    """An autograd function of the script's own, whose gradient isn't the derivative."""
    return Given(lambda self, x: _Cube.apply(x.tanh()) + x)


@add("block")
def in_place() -> Any:
    """Writes into what it has made."""

    def forward(self: Any, x: Tensor) -> Tensor:
        out = self.layer(x)
        out[:, 0] = out[:, 1] * 2
        return F.softplus(out.mul_(0.5))

    return Given(forward, layer=_linear())


@add("block", "first", "removes", solves=(False, True))
def hook_that_removes_itself(solves: bool) -> Any:
    """A hook on what forward makes, as in deep equilibrium models."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.layer(x).tanh()
        new = self.layer(fixed).tanh() + x
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

    return _two(forward)


@add("block", "first", "inner", outside=(True, False), twice=(False, True))
def backward_in_forward(outside: bool, twice: bool) -> Any:
    """A loss of its own, whose backward forward runs; of layers that the rest uses, too, or not."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.training:
            loss = self.layer(x.detach()).square().mean()
            loss.backward(retain_graph=twice)
            if twice:
                torch.autograd.backward([3 * loss])
        return self.layer(x) if outside else self.other(x)

    return _two(forward)


@add("block", second=(True, False))
def gradient_in_forward(second: bool) -> Any:
    """A step down an energy, whose gradient forward takes."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            return self.layer(x)
        with torch.enable_grad():
            at = x if x.requires_grad and second else x.detach().requires_grad_()
            energy = F.softplus(self.layer(at)).square().sum()
            (slope,) = torch.autograd.grad(energy, at, create_graph=second)
        return x - 0.1 * slope + self.other.bias

    return _two(forward)


# --- which parameters and buffers are used, and how -----------------------------------------------------------------


_TWO: dict[str, Forward] = {
    "twice": lambda self, x: self.layer(self.layer(x).tanh()) + self.other(x),
    "unused": lambda self, x: self.layer(x),
    "branch": lambda self, x: self.layer(x) if float(x.detach()[:, 0].sum()) > 0 else self.other(x).tanh(),
    "branch around": lambda self, x: self.layer(x) if float(x.detach()[:, 0].sum()) > 0 else x * 0.5 + self.other.bias,
    "branch around all": lambda self, x: self.layer(x) if float(x.detach()[:, 0].sum()) > 0 else x * 0.5,
    "between rows": lambda self, x: self.layer(x - 0.5 * x.mean(0, keepdim=True)) + x.detach().abs().amax(),
}


@add("block", how=tuple(_TWO))
def two(how: str) -> Any:
    """Two layers: one used twice, one that no replica uses, another one for other rows, rows that touch each other."""
    return _two(_TWO[how])


@add("block")
def tied() -> Any:
    """Two layers with one weight."""
    block = _two(lambda self, x: self.other(F.softplus(self.layer(x))))
    block.other.weight = block.layer.weight
    return block


@add("block", after=(False, True))
def frozen(after: bool) -> Any:
    """A layer without gradients, behind or before one that has them."""
    block = _two(lambda self, x: self.layer(self.other(x).tanh()))
    (block.layer if after else block.other).requires_grad_(False)
    return block


@add("block", "severs")
def branch_without_gradient() -> Any:
    """Some rows have no gradient at all."""
    return _two(lambda self, x: self.layer(x if float(x.detach()[0, 0]) > 0 else x.detach()) + self.other.bias)


@add("block")
def detached() -> Any:
    """A part without gradients, and one whose input has none."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.other(x)
        return self.layer(x.detach()) + x.tanh() * fixed

    return _two(forward)


@add("block")
def counting() -> Any:
    """Buffers that forward writes into. (What it assigns gets lost in DataParallel alone.)"""

    def forward(self: Any, x: Tensor) -> Tensor:
        if self.training:
            self.added += 0.01 * x.detach().sum()
            self.calls += 1
        return x + 0.1 * self.added + 0.01 * self.calls

    block = Given(forward)
    block.register_buffer("added", torch.zeros(1))
    block.register_buffer("calls", torch.tensor(0), persistent=False)
    return block


@add("block")
def writing() -> Any:
    """Writes into parameters, frozen and not."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.bank.mul_(0.9).add_(0.1 * x.detach().mean(0))
        self.gain.data.clamp_(0.5, 1.5)
        return self.layer(x) * self.gain + self.bank.clone()

    bank = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
    return Given(forward, layer=_linear(), bank=bank, gain=nn.Parameter(torch.ones(WIDTH)))


@add("block", kind=("scalar", "row", "float32"))
def scaled(kind: str) -> Any:
    """A scalar, an empty and a narrower parameter."""
    made = {"scalar": torch.tensor(1.5), "row": torch.rand(1, WIDTH) + 0.5}
    made["float32"] = torch.rand(WIDTH, dtype=torch.float32) + 0.5
    return Given(
        lambda self, x: x * self.scale.to(x.dtype) + self.empty.sum(),
        scale=nn.Parameter(made[kind]),
        empty=nn.Parameter(torch.empty(0, WIDTH)),
    )


@add("block", "strided")
def transposed() -> Any:
    """A parameter that isn't contiguous."""
    return Given(lambda self, x: x @ self.weight, weight=nn.Parameter(torch.rand(WIDTH, WIDTH).t()))


@add("block", "complex", "strided")
def complex_numbers() -> Any:
    """A complex parameter."""

    def forward(self: Any, x: Tensor) -> Tensor:
        out = x.to(self.weight.dtype) @ self.weight
        return out.real + 0.5 * out.imag

    return Given(forward, weight=nn.Parameter(torch.rand(WIDTH, WIDTH).t() * (1 + 0.5j)))


@add("block", named=(False, True))
def parameter_list(named: bool) -> Any:
    """Parameters in a list or a dictionary."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for weight in self.weights.values() if named else self.weights:
            x = (x @ weight).tanh()
        return x

    weights = [nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.4) for _ in range(3)]
    named_ones = nn.ParameterDict({f"w{i}": each for i, each in enumerate(weights)})
    return Given(forward, weights=named_ones if named else nn.ParameterList(weights))
