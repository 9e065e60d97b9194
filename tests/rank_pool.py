"""Rank processes that stay alive between tests, forked from ones that have torch, since `import torch` takes seconds.

`pool(n, fn, *args)` runs the picklable `fn(*args)` on `n` ranks, each in a process of its own, joined in a gloo process
group, and returns the ranks' results in order. A test fails with the traceback of the first rank that raised.
`RankPool(devices=2)` has ranks on pretend CUDA devices (`pretend_cuda`).
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import forks

_SILENT = "no answer after"

# What the runtime and its tests import; the runtime itself is imported by each rank, as it is by a script.
_MODULES = "torch torch._dynamo torch.distributed torch.nn.parallel torch.utils.data numpy pytest rank_pool".split()


class Worker(NamedTuple):
    """A rank's process, the pipe to it, and the file in which it tells where it hangs."""

    process: forks.Fork
    pipe: Connection
    stacks: Path


class Answer(NamedTuple):
    """What a rank sends back: its result or its traceback, and whether its process can't be used again."""

    ok: bool
    value: Any
    spent: bool = False


class RankError(AssertionError):
    """A rank raised. The message holds its traceback, `failures` each failed rank's."""

    def __init__(self, failures: dict[int, str]) -> None:
        self.failures = failures
        follows = ("closed by peer", _SILENT)
        first = min(failures, key=lambda rank: (any(text in failures[rank] for text in follows), rank))
        silent = [f"rank {rank}: {text}" for rank, text in failures.items() if rank != first and _SILENT in text]
        super().__init__("\n".join([f"rank {first} of the failed {sorted(failures)}:\n{failures[first]}", *silent]))


class RankPool:
    """Processes for each world size asked for, started when first needed and anew after a failure.

    Their process groups are never destroyed: with gloo on torch 2.1 that hangs now and then.

    Args:
        devices: how many pretend CUDA devices there are. Each of several ranks sees its own one; a single rank sees
            all, as the process of an original does. With 0 the ranks are on the CPU.
    """

    def __init__(self, devices: int = 0) -> None:
        self._devices = devices
        # Neighbours come from two of them, so that they hash strings and place objects differently, as ranks do that
        # are started one by one: sets that are iterated must not part them.
        self._parents: dict[int, forks.Parent] = {}
        self._sets: dict[tuple[int, bool], list[Worker]] = {}
        # The stores' files stay as long as the process groups: a new group needs its parent's.
        self._folder = tempfile.TemporaryDirectory()
        self._jobs = 0

    def __call__(
        self, n: int, fn: Callable[..., Any], *args: Any, join: bool = True, timeout: float = 120, **kwargs: Any
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` on `n` ranks and return their results.

        With `join=False` no process group is joined: the ranks only have torchrun's environment variables.

        Raises:
            RankError: a rank raised, died, or took longer than `timeout` seconds.
        """
        workers = self._sets.get((n, join))
        if workers is None:
            workers = self._sets[n, join] = [self._start(rank, n) for rank in range(n)]
        self._jobs += 1
        store = str(Path(self._folder.name, f"store{self._jobs}"))
        job = pickle.dumps((sys.path, os.getcwd(), n, store, join, timeout))
        for rank, worker in enumerate(workers):
            worker.pipe.send_bytes(job)
            worker.pipe.send_bytes(pickle.dumps((rank, fn, args, kwargs)))
        answers = _collect(workers, timeout)
        failures = {rank: answer.value for rank, answer in answers.items() if not answer.ok}
        if failures or any(answer.spent for answer in answers.values()):
            _end(self._sets.pop((n, join)))
        if failures:
            raise RankError(failures)
        return [answers[rank].value for rank in range(n)]

    def original(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn(*args)` returns in a process of its own that sees all devices, and knows nothing of ranks."""
        return self(1, fn, *args, join=False)[0]

    def close(self) -> None:
        """End the processes."""
        for workers in self._sets.values():
            _end(workers)
        for parent in self._parents.values():
            parent.close()
        self._sets, self._parents = {}, {}
        self._folder.cleanup()

    def _start(self, rank: int, n: int) -> Worker:
        path = os.pathsep.join(filter(None, sys.path))
        shown = range(self._devices) if n == 1 or not self._devices else [rank]
        own = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, shown)), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        variables = {**os.environ, **own}
        ours, theirs = socket.socketpair()
        stacks = Path(self._folder.name, f"stacks{self._jobs}.{rank}")
        with theirs:
            if not forks.WORKERS_OF_FORKS:
                command = [
                    sys.executable,
                    "-c",
                    f"import rank_pool; rank_pool.serve({str(stacks)!r}, {self._devices}, {theirs.fileno()})",
                ]
                started: Any = subprocess.Popen(command, env=variables, pass_fds=[theirs.fileno()])
                return Worker(started, Connection(ours.detach()), stacks)
            if rank % 2 not in self._parents:
                self._parents[rank % 2] = forks.Parent(_MODULES, variables)
            place = {"variables": variables, "folder": os.getcwd()}
            arguments = str(stacks), self._devices
            fork = self._parents[rank % 2].fork("rank_pool:serve", *arguments, descriptors=[theirs.fileno()], **place)
        return Worker(fork, Connection(ours.detach()), stacks)


@dataclass(frozen=True)
class Body:
    """What a rank runs of a test that is made by `on_ranks`, whose name is the test's there, too."""

    module: str
    name: str

    def __call__(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name).body()


def on_ranks(*sizes: int, each: Any = None) -> Callable[[Callable[[], Any]], Any]:
    """Makes a test whose body ranks run, as many as each of `sizes`; each returns `each`."""

    def make(body: Callable[[], Any]) -> Any:
        def test(ranks: RankPool) -> None:
            for n in sizes:
                assert ranks(n, Body(body.__module__, body.__name__)) == [each] * n

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body = body  # type: ignore[attr-defined]
        return test

    return make


def _collect(workers: list[Worker], timeout: float) -> dict[int, Answer]:
    waiting: dict[Any, int] = {worker.pipe: rank for rank, worker in enumerate(workers)}
    answers: dict[int, Answer] = {}
    end = time.monotonic() + timeout
    while waiting:
        ready = wait(list(waiting), max(0.0, end - time.monotonic()))
        if not ready:
            what = f"{_SILENT} {timeout} s, or 20 s after another rank's failure"
            silent = {rank: f"{what}\n{workers[rank].stacks.read_text()}" for rank in waiting.values()}
            return {**answers, **{rank: Answer(False, text, spent=True) for rank, text in silent.items()}}
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, ConnectionResetError):
                answers[rank] = Answer(False, "the process died", spent=True)
            if not answers[rank].ok:
                # The others may wait for this rank in vain: don't give them the whole time.
                end = min(end, time.monotonic() + 20)
    return answers


def _end(workers: list[Worker]) -> None:
    for process, pipe, _ in workers:
        pipe.close()
        process.kill()
        process.wait()


def serve(stacks: str, devices: int, descriptor: int) -> None:
    """In a rank's process: do what the pool sends, until the pool is gone."""
    if devices:
        import pretend_cuda
        import torch

        pretend_cuda.install(devices)
        torch.cuda.init()  # as `setup` does, and DataParallel
    told = open(stacks, "a")  # noqa: SIM115 - as long as the process
    pipe = Connection(descriptor)
    while True:
        try:
            path, folder, n, store, join, timeout = pickle.loads(pipe.recv_bytes())
            task = pipe.recv_bytes()
        except EOFError:
            return
        sys.path[:] = path
        os.chdir(folder)
        faulthandler.dump_traceback_later(timeout - 5, file=told)
        try:
            answer = pickle.dumps(_run(task, n, store, join))
        except BaseException:  # noqa: BLE001 - whatever it was, the test is told
            answer = pickle.dumps(Answer(False, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
        pipe.send_bytes(answer)


def _run(task: bytes, n: int, store: str, join: bool) -> Answer:
    import torch
    import torch.distributed as dist
    from dp2ddp_runtime import files, hangs, streams
    from dp2ddp_runtime.world import world

    rank, fn, args, kwargs = pickle.loads(task)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_default_dtype(torch.float32)
    if join and world.store is None:
        on_device = torch.cuda.is_initialized()
        kept = dist.FileStore(store, n)
        world.local_rank = rank
        world.meet(kept, rank, n, torch.device("cuda", 0) if on_device else torch.device("cpu"))
        if n > 1:
            files.install()
            streams.own_start()
            hangs.start(n)
    result = fn(*args, **kwargs)
    return Answer(True, result, spent=not join and world.store is not None)
