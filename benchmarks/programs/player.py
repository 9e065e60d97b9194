"""A process that plays programs: as one of the ranks, or as the oracle."""

from __future__ import annotations

import gc
import importlib
import pickle
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any, Callable

import torch
import torch.distributed as dist
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import deferred, loader
from dp2ddp_runtime.gradients import summing
from dp2ddp_runtime.model import scatter_gather
from dp2ddp_runtime.ranks import exchange, group, rng

from .play import play
from .spec import Options, Spec

#: What stands in for `nn.DataParallel`: a module and a class, called with a module, `dim` and the number of devices.
ORACLES = {
    "emulated": "dp2ddp.verify.emulate.oracle:EmulatedDataParallel",
    "torch": "programs.torch_oracle:OnHost",
}
#: What wraps models on ranks.
WRAP = "dp2ddp_runtime.model.wrapped:wrap_model"

_SIZES = {
    "LARGE": scatter_gather.LARGE,
    "SMALL": deferred.SMALL,
    "FIRST": summing._FIRST_BUCKET,
    "BUCKET": summing._BUCKET,
}


def serve(pipe: Connection, rank: int, ranks: int, store: str, wrap: str) -> None:
    """Play what comes through the pipe, and send back what was seen, or the error.

    Args:
        pipe: specs in, outcomes out.
        rank: which one it is; the oracle, if negative.
        ranks: how many there are.
        store: a file by which they meet.
        wrap: what wraps models: "module:name".
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    gc.freeze()
    try:
        if wrap == ORACLES["torch"]:
            _pretend()
    except Exception as error:  # noqa: BLE001 - for who asks for programs
        pipe.send_bytes(pickle.dumps(error))
        return
    module, name = wrap.split(":")
    found = getattr(importlib.import_module(module), name)
    if rank >= 0:
        _join(rank, ranks, store)
    while True:
        try:
            spec = Spec.from_json(pipe.recv())
        except EOFError:
            return
        try:
            outcome: Any = _as_rank(spec, found) if rank >= 0 else _as_oracle(spec, found)
        except Exception as error:  # noqa: BLE001 - an outcome of a program, to compare with others
            outcome = type(error).__name__, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(outcome))


def _pretend() -> None:
    importlib.import_module("programs.torch_oracle").install()


def _join(rank: int, ranks: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    kept = dist.distributed_c10d._get_default_store()
    group.hide()
    world.enter(world.World(rank, rank, ranks, ranks, torch.device("cpu"), ready=True, store=kept))


def _as_rank(spec: Spec, wrap: Callable[..., Any]) -> Any:
    _choose_sizes(spec.options)
    exchange.piggybacked.clear()
    return play(spec, wrap, loader.shard_loader)


def _choose_sizes(options: Options) -> None:
    """Let tiny tensors be treated as large ones are, or not."""
    scatter_gather.LARGE, deferred.SMALL = (8, 8) if options.deferred else (_SIZES["LARGE"], _SIZES["SMALL"])
    sizes = (100, 200) if options.buckets else (_SIZES["FIRST"], _SIZES["BUCKET"])
    summing._FIRST_BUCKET, summing._BUCKET = sizes


def _as_oracle(spec: Spec, kind: Any) -> Any:
    # A rank has one stream for all its models.
    streams = [rng.Stream(rank=rank) for rank in range(spec.ranks)]

    class Oracle(kind):  # type: ignore[misc]
        pass

    Oracle.streams = streams
    return play(spec, lambda module, dim=0: Oracle(getattr(module, "module", module), dim=dim, n=spec.ranks), list_like)


def list_like(loader: Any) -> Any:
    """The loader itself."""
    return loader
