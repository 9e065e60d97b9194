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
from dp2ddp_runtime import gradients, large, rows, streams
from dp2ddp_runtime.world import c10d, world

from .play import play
from .spec import Options, Spec

#: What stands in for `nn.DataParallel`: a module and a class, called with a module, `dim` and the number of devices.
ORACLES = {
    "emulated": "dp2ddp.verify.emulate.oracle:EmulatedDataParallel",
    "torch": "programs.torch_oracle:OnHost",
}
#: What wraps models on ranks.
WRAP = "dp2ddp_runtime.model:wrap_model"

_rows: Any = rows
_LARGE, _SMALL, _BUCKETS = large.LARGE, _rows.SMALL, list(gradients.BUCKETS)


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
    streams.own_start()  # so that a program that is played again draws as it did
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
    world.meet(c10d.FileStore(store, ranks), rank, ranks, torch.device("cpu"))


def _as_rank(spec: Spec, wrap: Callable[..., Any]) -> Any:
    _choose_sizes(spec.options)
    rows.pending()
    return play(spec, lambda module, dim=0: wrap(module, dim=dim), list_like if world.size == 1 else _shard)


def _shard(loader: Any) -> Any:
    return importlib.import_module("dp2ddp_runtime").shard_loader(loader)


def _choose_sizes(options: Options) -> None:
    """Let tiny tensors be treated as large ones are, or not."""
    large.LARGE, _rows.SMALL = (8, 8) if options.deferred else (_LARGE, _SMALL)
    gradients.BUCKETS[:] = (100, 200) if options.buckets else _BUCKETS


def _as_oracle(spec: Spec, kind: Any) -> Any:
    # A rank has one stream for all its models.
    own = [streams.Stream(rank=rank) for rank in range(spec.ranks)]

    class Oracle(kind):  # type: ignore[misc]
        pass

    Oracle.streams = own
    return play(spec, lambda module, dim=0: Oracle(getattr(module, "module", module), dim=dim, n=spec.ranks), list_like)


def list_like(loader: Any) -> Any:
    """The loader itself."""
    return loader
