"""A process that plays programs: as one of the ranks, or as the oracle."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
from dp2ddp_runtime import gradients, large, rows, streams
from dp2ddp_runtime.world import c10d, world

from .parts import Part
from .play import play

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
    os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
    vars(multiprocessing.process)["_parent_process"] = None  # a process as a launcher starts it, and nobody's worker
    torch.set_num_threads(1)
    streams.own_start()  # so that a program that is played again draws as it did
    warnings.simplefilter("ignore")
    gc.freeze()
    module, name = wrap.split(":")
    try:
        if wrap == ORACLES["torch"]:
            importlib.import_module(module).install()
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # noqa: BLE001 - for who asks for programs
        pipe.send(error)
        return
    if rank >= 0:
        world.meet(c10d.FileStore(store, ranks), rank, ranks, torch.device("cpu"))
    while True:
        spec = Part.from_json(pipe.recv())
        try:
            outcome: Any = _as_rank(spec, found) if rank >= 0 else _as_oracle(spec, found)
        except Exception as error:  # noqa: BLE001 - an outcome of a program, to compare with others
            outcome = type(error).__name__, traceback.format_exc()
        pipe.send(outcome)


def _as_rank(spec: Part, wrap: Any) -> Any:
    # Let tiny tensors be treated as large ones are, or not.
    large.LARGE, _rows.SMALL = (8, 8) if spec["deferred"] else (_LARGE, _SMALL)
    gradients.BUCKETS[:] = (100, 200) if spec["buckets"] else _BUCKETS
    rows.pending()
    runtime = importlib.import_module("dp2ddp_runtime")
    return play(spec, lambda module, dim=0: wrap(module, dim=dim), runtime.shard_loader)


def _as_oracle(spec: Part, kind: Any) -> Any:
    class Oracle(kind):  # type: ignore[misc]
        pass

    Oracle.streams = [streams.Stream(rank=rank) for rank in range(spec["ranks"])]  # a rank has one for all its models

    def wrap(module: Any, dim: int = 0) -> Any:
        return Oracle(getattr(module, "module", module), dim=dim, n=spec["ranks"])

    return play(spec, wrap, lambda loader: loader)
