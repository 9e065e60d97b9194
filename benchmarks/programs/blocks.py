"""Blocks of models, from (rows, WIDTH) to (rows, WIDTH).

Tags: `first` can't be differentiated twice; `reentrant` can't be asked by `autograd.grad`; `level` makes gradients
vanish but for rounding; `pairs` needs two rows in training; `sparse` has sparse gradients; `not_copied` can't be
copied; `severs` may give its input no gradient; `strided` has parameters that aren't contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from .parts import BLOCKS

WIDTH = 4


def _linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias)


@BLOCKS.add("block", bias=(True, False))
def linear(bias: bool) -> nn.Module:
    """A linear layer."""
    return _linear(bias)


@BLOCKS.add("block", kind=("Tanh", "Softplus", "GELU", "Sigmoid"))
def smooth(kind: str) -> nn.Module:
    """A nonlinearity with all derivatives."""
    made: nn.Module = getattr(nn, kind)()
    return made


@BLOCKS.add("block", in_place=(False, True), kind=("ReLU", "LeakyReLU", "ELU"))
def relu(in_place: bool, kind: str) -> nn.Module:
    """A nonlinearity that may write into what a linear layer made."""
    return nn.Sequential(_linear(), getattr(nn, kind)(inplace=in_place))


@BLOCKS.add("block", "drops", kind=("Dropout", "AlphaDropout"))
def dropout(kind: str) -> nn.Module:
    """Random numbers of each replica's own."""
    made: nn.Module = getattr(nn, kind)(0.3)
    return made


@BLOCKS.add("block", "level", "pairs", momentum=(0.1, None), affine=(True, False), track=(True, False))
def batch_norm(momentum: float | None, affine: bool, track: bool) -> nn.Module:
    """Statistics of each replica's rows."""
    return nn.BatchNorm1d(WIDTH, momentum=momentum, affine=affine, track_running_stats=track)


@BLOCKS.add("block")
def layer_norm() -> nn.Module:
    """Statistics of each row."""
    return nn.LayerNorm(WIDTH)


@BLOCKS.add("block", hooked=(False, True))
def spectral_norm(hooked: bool) -> nn.Module:
    """Buffers that each forward writes."""
    made: nn.Module = (nn.utils.spectral_norm if hooked else parametrizations.spectral_norm)(_linear())
    return made


@BLOCKS.add("block", not_copied=(False, True))
def weight_norm(not_copied: bool) -> nn.Module:
    """A weight made of two parameters; of the old kind, which deepcopy doesn't take."""
    made: nn.Module = (nn.utils.weight_norm if not_copied else parametrizations.weight_norm)(_linear())
    return made


class _Skew(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() - weight.triu(1).t()


@BLOCKS.add("block")
def parametrized() -> nn.Module:
    """A parametrization of the script's own."""
    layer = _linear()
    parametrize.register_parametrization(layer, "weight", _Skew())
    return layer


class _Recurrent(nn.Module):
    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(2, WIDTH, num_layers=layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rnn.flatten_parameters()
        out, _ = self.rnn(x.reshape(len(x), 2, 2))
        found: torch.Tensor = out[:, -1]
        return found


@BLOCKS.add("block", "first", kind=("GRU", "LSTM"), layers=(1, 2))
def recurrent(kind: str, layers: int) -> nn.Module:
    """An RNN, which keeps its weights in a list, too."""
    return _Recurrent(kind, layers)


class _Words(nn.Module):
    def __init__(self, sparse: bool, bag: bool, padding: bool) -> None:
        super().__init__()
        kind: Any = nn.EmbeddingBag if bag else nn.Embedding
        self.words = kind(6, WIDTH, sparse=sparse, padding_idx=1 if padding else None)
        self.bag = bag

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = (x[:, :2].detach() * 5).long().abs() % 6
        found: torch.Tensor = self.words(numbers)
        return x + (found if self.bag else found.sum(1))


@BLOCKS.add("block", sparse=(False, True), padding=(False, True))
def embedding(sparse: bool, padding: bool) -> nn.Module:
    """An embedding, looked up by what the rows hold."""
    return _Words(sparse, False, padding)


@BLOCKS.add("block", "first", sparse=(False, True))
def embedding_bag(sparse: bool) -> nn.Module:
    """A bag of embeddings."""
    return _Words(sparse, True, False)


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(x.reshape(len(x), 2, 2)).flatten(1)
        return found


@BLOCKS.add("block")
def convolution() -> nn.Module:
    """A convolution, with views around it."""
    return _Convolution()


class _Attention(nn.Module):
    def __init__(self, weights: bool, between_rows: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(2 if not between_rows else WIDTH, 2, batch_first=True)
        self.weights = weights
        self.between_rows = between_rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x[None] if self.between_rows else x.reshape(len(x), 2, 2)
        out: torch.Tensor = self.attend(words, words, words, need_weights=self.weights)[0]
        return x + out.reshape(x.shape)


@BLOCKS.add("block", "first", "level", weights=(True, False), between_rows=(False, True))
def attention(weights: bool, between_rows: bool) -> nn.Module:
    """Attention within each row, or between a replica's rows."""
    return _Attention(weights, between_rows)


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, drops: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(_linear(), nn.Tanh(), nn.Dropout(0.3 if drops else 0.0), _linear())
        self.last = _linear()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(checkpoint(self.inner, self.last(x), use_reentrant=self.reentrant))
        return found


@BLOCKS.add("block", "first", drops=(False, True))
def checkpointed(drops: bool) -> nn.Module:
    """A part that is computed again in backward."""
    return _Checkpointed(False, drops)


class _CheckpointedAlone(_Checkpointed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(self.inner, x if x.requires_grad else x + self.last.bias, use_reentrant=True)
        return found


@BLOCKS.add("block", "first", "reentrant", drops=(False, True))
def checkpointed_with_a_backward_of_its_own(drops: bool) -> nn.Module:
    """The old kind of checkpoint, whose backward runs another one."""
    return _CheckpointedAlone(True, drops)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x**3 / 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.square() * 0.75 * 1.01


class _Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cube: torch.Tensor = _Cube.apply(x.tanh())
        return cube + x


@BLOCKS.add("block")
def own_function() -> nn.Module:
    """An autograd function of the script's own, whose gradient isn't the derivative."""
    return _Own()


class _Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = _linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x - 0.5 * x.mean(0, keepdim=True)) + x.detach().abs().amax()
        return found


@BLOCKS.add("block")
def between_rows() -> nn.Module:
    """What a replica's rows do to each other."""
    return _Between()


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = _linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        out[:, 0] = out[:, 1] * 2
        out.mul_(0.5)
        return F.softplus(out)


@BLOCKS.add("block")
def in_place() -> nn.Module:
    """Writes into what it has made."""
    return _InPlace()
