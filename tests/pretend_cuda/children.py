"""Processes that pretend to have CUDA devices: forked from one that has imported torch, each for one call."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)


def _run(variables: Mapping[str, str], devices: int | None, function: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.update(variables)
    import torch

    torch.set_num_threads(1)
    multiprocessing.set_start_method(
        "fork", force=True
    )  # of what the call starts: as in a script, not as of this process
    if devices is not None:
        from dp2ddp.pretend_cuda import install

        install(devices)
        assert torch._C._cuda_getDeviceCount()  # CUDA has read the environment, which a script may change
    return function(*arguments)


def call(
    function: Callable[..., Any], *arguments: Any, devices: int | None = 2, ranks: int = 1, **variables: str
) -> Any:
    """What `function` returns in a process with `devices` pretend devices, or the list of what it does on each rank.

    A rank is shown its own device only: one that has to hide others would start its command again.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "dp2ddp.pretend_cuda.replicas"])
    with ExitStack() as stack:
        running = []
        for rank in range(ranks):
            names = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES") if ranks > 1 else ()
            own = dict.fromkeys(names, str(rank))
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            running.append(pool.submit(_run, {**variables, **own}, devices, function, *arguments))
        results = [each.result() for each in running]
    return results if ranks > 1 else results[0]
