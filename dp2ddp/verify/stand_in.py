"""What a script sees in place of this machine: replicas where it asks for `nn.DataParallel`, no CUDA on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import nn

from ..oracle import EmulatedDataParallel

# Every place from which scripts import the class. `torch.nn.parallel.data_parallel` is a module that a function of
# the same name hides, hence no attribute access.
_HOMES = ("torch.nn", "torch.nn.parallel", "torch.nn.parallel.data_parallel")


def emulate(replicas: int) -> type[nn.Module]:
    """Put `EmulatedDataParallel` with `replicas` replicas where `DataParallel` is; returns the class.

    Call it before the script is imported. A model that the script saves whole is pickled as torch's own class.
    """
    home = _HOMES[-1]
    body = {"replicas": replicas, "__module__": home, "__qualname__": "DataParallel"}
    stand_in = type("DataParallel", (EmulatedDataParallel,), body)
    for name in _HOMES:
        vars(importlib.import_module(name))["DataParallel"] = stand_in
    return stand_in


def hide_cuda(devices: int) -> None:
    """Make the process run on the CPU though it sees `devices` of them.

    Scripts wrap their model under `torch.cuda.device_count() > 1` and choose their device by
    `torch.cuda.is_available()`. Environment variables don't do here: a script may set `CUDA_VISIBLE_DEVICES` itself.
    """
    answers: dict[str, Callable[[], int]] = {"is_available": lambda: False, "device_count": lambda: devices}
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
