"""Models of blocks, with the many ways in which they are wrapped, are called, and answer."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any, Callable

import torch
from torch import nn

from .blocks import WIDTH
from .parts import Part, add

Wrap = Callable[..., nn.Module]
Answer = namedtuple("Answer", "main extra")


class Core(nn.Module):
    """What is wrapped: blocks and a last layer."""

    def __init__(self, told: Part) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(block.make() for block in told.parts))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.output = told["output"]

    def forward(self, x: Any, more: Any = None, scale: float = 1.0, name: str = "", target: Any = None) -> Any:
        """The output of `x`; with a `target` only its loss."""
        if isinstance(x, list):
            x = x[0] + 0.1 * x[1]["other"][0]
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

    def __init__(self, told: Part, wrap: Wrap) -> None:
        super().__init__()
        self.stem, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.features = wrap(Core(told))
        second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.more = wrap(second) if told["wrap"] == "parts" else nn.Softplus()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any, target: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """As `Core.forward`."""
        x = [self.stem(x[0]), *x[1:]] if isinstance(x, list) else self.stem(x)
        out = self.last(self.drop(self.more(main_of(self.features(x, **kwargs)))))
        return out if target is None else (out - target).square().mean()


@add(
    "model",
    wrap=("whole", "part", "parts"),
    call=("plain", "kwargs", "nested", "uneven"),
    output=("tensor", "tuple", "dict", "named", "with_loss", "list"),
)
def model(**told: str) -> None:
    """How a model of blocks is wrapped, called, and answers."""


def build(told: Part, wrap: Wrap) -> nn.Module:
    """A model, wrapped."""
    return wrap(Core(told)) if told["wrap"] == "whole" else Parted(told, wrap)


def arguments(how: str, x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with."""
    if how == "kwargs":
        return (), {"x": x, "scale": 0.5, "name": "a name"}
    if how == "nested":
        return ([x, {"other": (x * 0.5, "text"), "number": 3}],), {}
    return (x,), {"more": x[: (len(x) + 2) // 3] * 2} if how == "uneven" else {}


@contextlib.contextmanager
def holding(net: nn.Module, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """A model with other weights than its own, as learn2learn gives it: functional_call takes no `nn.DataParallel`."""
    places = []
    for name, weight in weights.items():
        path, _, last = name.rpartition(".")
        own = net.get_submodule(path)._parameters
        places.append((own, last, own[last]))
        own[last] = weight  # type: ignore[assignment]
    try:
        yield
    finally:
        for own, last, param in places:
            own[last] = param
