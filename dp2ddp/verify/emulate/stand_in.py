"""What a script sees in place of `nn.DataParallel`: replicas in turn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from dp2ddp_runtime import streams
from torch import nn

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

# Every place from which scripts import the class. `torch.nn.parallel.data_parallel` is a module that a function of
# the same name hides, hence no attribute access.
_HOMES = ("torch.nn", "torch.nn.parallel", "torch.nn.parallel.data_parallel")


def emulate(replicas: int, splits: Callable[[nn.Module, Sequence[Any]], None]) -> None:
    """Put a class with `replicas` replicas where `DataParallel` is, and the functional form of it where
    `data_parallel` is.

    Args:
        splits: is called whenever a batch is split, with the module and what each replica of it is called with.

    Call it before the script is imported. A model that the script saves whole is pickled as torch's own class. All
    models draw from one stream per replica, as those of a converted script draw from one per rank.
    """
    streams.own_start()
    body: dict[str, Any] = {
        "replicas": replicas,
        "streams": [streams.Stream(rank=rank) for rank in range(replicas)],
        "splits": lambda self, calls: splits(self.module, calls),
        "__module__": _HOMES[-1],
        "__qualname__": "DataParallel",
    }
    stand_in: Any = type("DataParallel", (EmulatedDataParallel,), body)

    def data_parallel(
        module: nn.Module,
        inputs: Any,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        module_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        return stand_in(module, device_ids, output_device, dim)(*arguments, **(module_kwargs or {}))

    for name in _HOMES:
        vars(importlib.import_module(name))["DataParallel"] = stand_in
    for name in _HOMES[1:]:
        vars(importlib.import_module(name))["data_parallel"] = data_parallel
