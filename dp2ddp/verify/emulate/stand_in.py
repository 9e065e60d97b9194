"""What a script sees in place of `nn.DataParallel`: replicas in turn; and a seed, where it has none."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from dp2ddp_runtime.ranks.rng import Stream
from torch import nn

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel, emulated_data_parallel
from dp2ddp.verify.emulate.pretended import PretendedDataParallel

# Every place from which scripts import the class. `torch.nn.parallel.data_parallel` is a module that a function of
# the same name hides, hence no attribute access.
_HOMES = ("torch.nn", "torch.nn.parallel", "torch.nn.parallel.data_parallel")


def emulate(
    replicas: int, splits: Callable[[nn.Module, Sequence[Any]], None] | None = None, *, pretended: bool = False
) -> type[nn.Module]:
    """Put `EmulatedDataParallel` with `replicas` replicas where `DataParallel` is, and the functional form of it where
    `data_parallel` is; returns the class.

    Args:
        splits: is called whenever a batch is split, with the module and what each replica of it is called with.
        pretended: on pretend CUDA devices, so it is torch's own class, over those that the script sees.

    Call it before the script is imported. A model that the script saves whole is pickled as torch's own class. All
    models draw from one stream per replica, as those of a converted script draw from one per rank.
    """
    home = _HOMES[-1]
    streams = [Stream(rank=rank) for rank in range(replicas)]
    body: dict[str, Any] = {
        "replicas": replicas,
        "streams": streams,
        "__module__": home,
        "__qualname__": "DataParallel",
    }
    if splits is not None:
        body["splits"] = lambda self, calls: splits(self.module, calls)
    kind: type[nn.Module] = PretendedDataParallel if pretended else EmulatedDataParallel
    stand_in: Any = type("DataParallel", (kind,), body)
    for name in _HOMES:
        vars(importlib.import_module(name))["DataParallel"] = stand_in
    for name in _HOMES[1:]:
        vars(importlib.import_module(name))["data_parallel"] = partial(emulated_data_parallel, kind=stand_in)
    made: type[nn.Module] = stand_in
    return made


def seed(value: int) -> None:
    """Seed the generators that scripts draw from, for those that don't seed them."""
    random.seed(value)
    torch.manual_seed(value)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(value)


def _numpy() -> Any:
    """NumPy, if torch has it."""
    return sys.modules.get("numpy")
