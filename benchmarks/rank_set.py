"""The processes that train one variant, a turn of some steps at a time. Between turns they are stopped (SIGSTOP).

So a variant costs the others nothing: its loader's workers, which would go on filling their queues, stop as well, and
when its turn comes they have no more ready than they had. Linux only.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType

from variants import SCRIPTS

PATIENCE = 300  # seconds for a turn: ranks that wait for each other for ever must not be waited for


class RankError(Exception):
    """A rank failed; the message is its traceback."""


@dataclass(frozen=True)
class Turn:
    """What some steps cost a rank: seconds, seconds of processors, bytes sent, the most memory held so far (bytes)."""

    seconds: float
    cpu: float
    sent: float
    peak: float


class RankSet:
    """A context: the ranks start with it, and are killed with their loaders' workers when it is left."""

    def __init__(self, name: str, script: Path, arguments: Sequence[str], places: Sequence[Mapping[str, str]]) -> None:
        """Start the ranks.

        Args:
            script: has a generator `main`, which stops ahead of each step.
            arguments: its command line.
            places: each rank's environment variables.
        """
        self._name = name
        self._ranks: dict[Connection, SpawnProcess] = {}
        context = multiprocessing.get_context("spawn")
        os.environ.setdefault("PYTHONHASHSEED", "0")  # read when Python starts; the ranks' sets have one order
        for place in places:
            ours, theirs = context.Pipe()
            process = context.Process(target=_be_rank, args=(dict(place), str(script), [*arguments], theirs))
            process.start()
            theirs.close()
            self._ranks[ours] = process

    def __enter__(self) -> RankSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGKILL)
        for process in self._ranks.values():
            process.kill()  # where it has no group of its own yet
            process.join()

    def turn(self, warm_up: int, steps: int) -> Turn:
        """Train `warm_up` steps, then `steps` that count. Raises `RankError`."""
        self._signal(signal.SIGCONT)
        for connection in self._ranks:
            with contextlib.suppress(BrokenPipeError):  # `_replies` tells why
                connection.send((warm_up, steps))
        turns = self._replies()
        self._signal(signal.SIGSTOP)
        return Turn(
            seconds=max(turn.seconds for turn in turns),
            cpu=statistics.mean(turn.cpu for turn in turns),
            sent=statistics.mean(turn.sent for turn in turns),
            peak=max(turn.peak for turn in turns),
        )

    def _replies(self) -> list[Turn]:
        """One reply of each rank; the first failure ends the waiting."""
        turns: list[Turn] = []
        waiting = list(self._ranks)
        while waiting:
            ready = wait(waiting, PATIENCE)
            if not ready:
                raise RankError(f"{self._name}: {len(waiting)} ranks have said nothing for {PATIENCE} seconds")
            for connection in ready:
                assert isinstance(connection, Connection)
                reply = self._reply(connection)
                if not isinstance(reply, Turn):
                    rank = list(self._ranks).index(connection)
                    raise RankError(f"{self._name}, rank {rank}: {reply}")
                turns.append(reply)
                waiting.remove(connection)
        return turns

    def _reply(self, connection: Connection) -> object:
        try:
            return connection.recv()
        except (EOFError, ConnectionError):
            process = self._ranks[connection]
            process.join()
            return f"ended with exit code {process.exitcode}"

    def _signal(self, number: int) -> None:
        for process in self._ranks.values():
            assert process.pid is not None
            with contextlib.suppress(ProcessLookupError):  # a rank's group has its number, and its workers are in it
                os.killpg(process.pid, number)


def places(ranks: int, alone: bool, device: str) -> list[dict[str, str]]:
    """Environment variables, as torchrun gives them, of each rank on this machine; or of one plain process."""
    common = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    if alone:
        return [common]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    common |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _be_rank(place: Mapping[str, str], script: str, arguments: Sequence[str], parent: Connection) -> None:
    """In a new process: train a script in turns, as told."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)  # of loaders' workers; here it would be "spawn"
    vars(multiprocessing.process)["_parent_process"] = None  # a process as torchrun starts it, and nobody's worker
    os.environ.update(place)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(SCRIPTS))
    try:
        steps = runpy.run_path(script)["main"]()
        while True:
            warm_up, count = parent.recv()
            parent.send(_take_turn(steps, warm_up, count))
    except BaseException:
        parent.send(traceback.format_exc())
        signal.pause()  # if it ended, other ranks would fail in turn, and might be heard first
        raise


def _take_turn(steps: Iterator[None], warm_up: int, count: int) -> Turn:
    for _ in range(warm_up):
        next(steps)
    _meet()
    before = _counters()
    for _ in range(count):
        next(steps)
    _meet()
    seconds, cpu, sent = (after - first for after, first in zip(_counters(), before))
    return Turn(seconds, cpu, sent, _peak())


def _meet() -> None:
    """Wait for this rank's GPU and for the other ranks."""
    import torch
    import torch.distributed as dist
    from dp2ddp_runtime.world import world

    if world.groups is not None:  # not by a message: the ranks need not be at the same line
        world.groups["cpu"].barrier().wait()
    elif dist.is_initialized():
        dist.barrier()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _counters() -> tuple[float, float, int]:
    """Seconds, seconds of processors, and the bytes that this process has written.

    All but a few hundred of these are gloo's. The interface counts them as well, but others may be using it.
    """
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return time.perf_counter(), time.process_time(), int(fields["wchar"])


def _peak() -> int:
    """Of GPU memory where there is one, else of this process's memory."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
