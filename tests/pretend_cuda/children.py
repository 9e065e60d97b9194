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
    # As in a script that was started: it is nobody's worker, and of what it starts itself Python decides how.
    process: Any = multiprocessing.process
    process._parent_process = None
    multiprocessing.set_start_method("fork", force=True)
    if devices is not None:
        from pretend_cuda import install

        install(devices)
        assert torch._C._cuda_getDeviceCount()  # CUDA has read the environment, which a script may change
    return function(*arguments)


def call(
    function: Callable[..., Any], *arguments: Any, devices: int | None = 2, ranks: int = 1, **variables: str
) -> Any:
    """What `function` returns in a process with `devices` pretend devices, or the list of what it does on each rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "pretend_cuda.replicas"])
    with ExitStack() as stack:
        running = []
        for rank in range(ranks):
            own = dict.fromkeys(("RANK", "LOCAL_RANK") if ranks > 1 else (), str(rank))
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            running.append(pool.submit(_run, {**variables, **own}, devices, function, *arguments))
        results = [each.result() for each in running]
    return results if ranks > 1 else results[0]
