"""Optimizers, with settings that keep tiny models tame.

Tag `sharp`: makes much of gradients that are zero but for rounding.
"""

from __future__ import annotations

from typing import Any

from .parts import OPTIMIZERS

_WAYS = ("plain", "foreach")
_SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "SGD": ({"lr": 0.05}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, {"lr": 0.02, "momentum": 0.5}),
    "Adam": ({"lr": 0.01}, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01}),
    "AdamW": ({"lr": 0.01}, {"lr": 0.01, "maximize": True}),
    "RMSprop": ({"lr": 0.005}, {"lr": 0.005, "momentum": 0.5, "centered": True}),
    "Adadelta": ({"lr": 0.5},),
    "Adamax": ({"lr": 0.01},),
    "NAdam": ({"lr": 0.01},),
    "RAdam": ({"lr": 0.01},),
    "ASGD": ({"lr": 0.05},),
    "Adagrad": ({"lr": 0.02},),
    "Rprop": ({"lr": 0.005},),
    "Adafactor": ({"lr": 0.01},),
    "LBFGS": ({"lr": 0.1, "max_iter": 3}, {"lr": 0.5, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
}
_TAME = ("SGD", "ASGD", "LBFGS")


def _enter() -> None:
    for name, settings in _SETTINGS.items():
        ways = {"SGD": (*_WAYS, "fused"), "Adam": (*_WAYS, "fused"), "LBFGS": ("plain",)}.get(name, _WAYS)

        def make(settings: dict[str, Any], way: str) -> dict[str, Any]:
            return settings if way == "plain" else {**settings, way: True}

        make.__name__ = name
        OPTIMIZERS.add("optimizer", *([] if name in _TAME else ["sharp"]), settings=settings, way=ways)(make)


_enter()
