"""Models of blocks, with the many ways in which they are wrapped, are called, and answer."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch
from torch import nn

from .blocks import WIDTH
from .parts import BLOCKS, Part

Wrap = Callable[..., nn.Module]
Answer = namedtuple("Answer", "main extra")

#: How a model is wrapped: all of it, a part, two parts.
WRAPS = ("whole", "part", "parts")
#: What it is given.
CALLS = ("plain", "kwargs", "nested", "uneven")
#: What it returns.
OUTPUTS = ("tensor", "tuple", "dict", "named", "with_loss", "list")


class Core(nn.Module):
    """What is wrapped: blocks and a last layer."""

    def __init__(self, blocks: Sequence[Part], output: str) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(BLOCKS.make(block) for block in blocks))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.output = output

    def forward(
        self,
        x: Any,
        more: Any = None,
        scale: float = 1.0,
        name: str = "",
        target: torch.Tensor | None = None,
    ) -> Any:
        """The output of `x`; with a `target` only its loss."""
        if isinstance(x, list):
            x, other = x[0], x[1]["other"][0]
            x = x + 0.1 * other
        if isinstance(more, torch.Tensor):
            x = x + more.mean()
        out = self.head(self.blocks(x)) * scale
        if target is not None:
            return (out - target).square().mean()
        forms: dict[str, Callable[[], Any]] = {
            "tensor": lambda: out,
            "tuple": lambda: (out, out.argmax(1), out.detach() * 2),
            "dict": lambda: {"extra": out > 0, "main": out, "sum": out.sum(1)},
            "named": lambda: Answer(out, [out[:, :2], None]),
            "with_loss": lambda: (out, out.square().mean()),
            "list": lambda: [out, (out.exp(), len(name))][:1],
        }
        return forms[self.output]()


def main_of(answer: Any) -> torch.Tensor:
    """The output that programs go on with."""
    found: torch.Tensor = answer
    if isinstance(answer, dict):
        found = answer["main"]
    elif isinstance(answer, (tuple, list)):
        found = answer[0]
    return found


class Parted(nn.Module):
    """A model of which parts are wrapped, and the rest runs whole."""

    def __init__(self, blocks: Sequence[Part], output: str, wrap: Wrap, second: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.features = wrap(Core(blocks, output))
        self.more = wrap(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())) if second else nn.Softplus()
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, target: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """As `Core.forward`."""
        if isinstance(x, list):
            x[0] = self.stem(x[0])
        else:
            x = self.stem(x)
        out = self.last(self.drop(self.more(main_of(self.features(x, **kwargs)))))
        return out if target is None else (out - target).square().mean()


def build(blocks: Sequence[Part], how: str, output: str, wrap: Wrap) -> nn.Module:
    """A model, wrapped."""
    if how == "whole":
        return wrap(Core(blocks, output))
    return Parted(blocks, output, wrap, second=how == "parts")


def arguments(how: str, x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with, in one of the `CALLS`."""
    if how == "kwargs":
        return (), {"x": x, "scale": 0.5, "name": "a name"}
    if how == "nested":
        return ([x, {"other": (x * 0.5, "text"), "number": 3}],), {}
    if how == "uneven":
        return (x,), {"more": x[: (len(x) + 2) // 3] * 2}
    return (x,), {}


@contextlib.contextmanager
def holding(net: nn.Module, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """A model with other weights than its own, as learn2learn gives it: functional_call takes no `nn.DataParallel`."""
    places = [(*_place(net, name), weight) for name, weight in weights.items()]
    own = [module._parameters[name] for module, name, _ in places]
    for module, name, weight in places:
        module._parameters[name] = weight  # type: ignore[assignment]
    try:
        yield
    finally:
        for (module, name, _), param in zip(places, own):
            module._parameters[name] = param


def _place(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return net.get_submodule(path), last
