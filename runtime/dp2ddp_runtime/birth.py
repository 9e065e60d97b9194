"""How ranks come to be: at the first wrap, as copies of what rank 0 has done so far.

The process that the user started *is* rank 0, and alone: it has the terminal, the debugger, all GPUs, the exit code.
At the first wrap it is known how many ranks are wanted, on which GPUs. Only then the others start (or, under a
launcher, go on from `setup`, where they have waited). They run the script up to the same line, with rank 0's random
states of `setup`, its answers and its view of the disk.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import codec, gpus, hangs, place, quiet, streams
from .disk import disk
from .signals import signals
from .store import count, publish, put, receive, unpublished, wait_until
from .world import agree, exchange, world

#: In a rank that rank 0 has started: its place, as JSON.
PLACE = "DP2DDP_PLACE"
#: torchrun's variables, as JSON, for a rank whose script must not see them: it may set up DDP itself if it does.
LAUNCHED = "DP2DDP_LAUNCHED"
#: In a process that has begun its command anew: its number, and what `quiet.terminals` gave before.
ANEW = "DP2DDP_ANEW"
#: In a rank, and in what it starts: its process.
OF = "DP2DDP_RANK_OF"
LOOPBACK = "127.0.0.1"
_TOLD_AFTER = 60.0  # seconds that rank 0 has taken to its first wrap, which each other rank takes as well


class Birth:
    """What a rank knows of how it came to be. One object, `birth`.

    Attributes:
        called: whether `setup` was called.
        begun: whether it was, and this process can become one of several ranks.
        launched: torchrun's variables (`RANK`, ...) where a launcher has started this process; else empty.
    """

    def __init__(self) -> None:
        self.called = self.begun = False
        self.launched: Mapping[str, str] = {}
        self.began_at = 0.0
        self.environment: dict[str, str] = {}
        self.command: list[str] = []
        self.folder = ""
        self.terminals: list[str] = []  # rank 0's, on another rank
        self.born: Any = None  # what rank 0 tells at its first wrap
        self.asked_at = ""  # a line above `setup` that has asked for what is rank 0's
        self.left = False


birth = Birth()


def form(device_ids: Any = None) -> int:
    """How many replicas a wrap has. At the first one with several, the ranks are born. A collective from then on.

    Args:
        device_ids: as `nn.DataParallel` takes them; None for all devices.

    Raises:
        RuntimeError: a later wrap asks for more devices than the first one.
        SystemExit: there is no such device, or no command that can be started again.
    """
    if world.groups is not None:
        return _later(gpus.named(device_ids)) if os.getpid() == world.pid else 1
    if not birth.begun:
        if not birth.called and multiprocessing.parent_process() is None and len(gpus.wanted(device_ids)) > 1:
            place.warn(
                "this wrap asks for several devices, and one process trains: put ddp.setup() on top of the file "
                "that is started"
            )
        return 1
    if os.getpid() != world.pid:
        return 1
    ids = gpus.wanted(device_ids, world.launched)
    size = _size(ids)
    if size > 1:
        if world.rank == 0:
            start_others(ids)
        _meet(ids)
        streams.adopt_modules()
    return size


def _size(ids: Sequence[int]) -> int:
    """How many ranks `ids`, the devices of each machine, make."""
    here, size = world.launched, int(birth.launched.get("WORLD_SIZE", 0))
    if here in (0, size):
        return len(ids)
    if len(ids) != here:
        raise SystemExit(
            f"dp2ddp: the first wrap ({place.line()}) asks for {len(ids)} device(s), and the launcher has started "
            f"{here} ranks on each machine: let it start as many"
        )
    return size


def _later(wanted: list[int] | None) -> int:
    most = world.size if world.launched in (0, world.size) else world.launched
    if not wanted or len(wanted) == most:
        return world.size
    if len(wanted) > most:
        raise RuntimeError(
            f"the wrap at {place.line()} asks for {len(wanted)} devices, and the first one asked for {most}: pass "
            f"device_ids of {len(wanted)} devices to the first wrap, or set DP2DDP_NPROC={len(wanted)}"
        )
    return len(wanted)


def start_others(ids: Sequence[int]) -> None:
    """Rank 0 tells that the others are wanted, and starts those that no launcher has started."""
    if birth.born.get("size") is not None:
        return
    birth.born.update(size=_size(ids), ids=[*ids], visible=gpus.visible(), machine=socket.gethostname())
    if world.store is None:
        _start_children(birth.born["size"])
    unpublished.hand_over()
    disk.hand_over()
    put("born", codec.encode(birth.born))


class Child:
    """A rank that this process has started, and the file that has what it wrote to standard error."""

    def __init__(self, rank: int, place: Mapping[str, Any], change: Mapping[str, str]) -> None:
        self.rank, self.errors = rank, tempfile.TemporaryFile()  # noqa: SIM115 - as long as the rank
        env = {**birth.environment, **change, PLACE: json.dumps({**place, "rank": rank})}
        env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a store whose host is gone C++ tells at length
        terminal = quiet.unread(place["terminals"][0])  # whose size modules ask for while they are imported
        self.process = subprocess.Popen(
            birth.command,
            env=env,
            cwd=birth.folder,
            stdin=terminal,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,  # Ctrl-C reaches rank 0 alone
        )
        os.close(terminal)

    def last_words(self) -> str:
        """What it has written to standard error, at most the last 20,000 characters."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 20_000))
        return self.errors.read().decode(errors="replace")


def _start_children(size: int) -> None:
    if not birth.command or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        raise SystemExit(
            "dp2ddp: several ranks need a script that can be started again: save it as a file, and run that"
        )
    if not os.path.isdir(birth.folder):
        raise SystemExit(f"dp2ddp: the ranks start where this process started, and {birth.folder} is gone")
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        place.warn(
            "sets of strings have another order on each rank, and by what is built or drawn in a loop over one the "
            "ranks come apart: start with PYTHONHASHSEED=0"
        )
    seconds = time.monotonic() - birth.began_at
    if seconds > _TOLD_AFTER:
        sys.stderr.write(
            f"dp2ddp: {seconds:.0f} s passed before the first wrap ({place.line()}), which each other rank takes now "
            'as well; ddp.setup(start="now") starts all at once\n'
        )
    # TCPStore's own socket would listen on every interface; and libuv's server can't take one in every torch.
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    tcp: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = tcp(LOOPBACK, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False)
    # Everybody on this machine can connect to it, and nobody can guess what the keys begin with.
    secret = secrets.token_hex(16)
    world.store = dist.PrefixStore(secret, store)  # type: ignore[attr-defined]
    told = {"port": port, "secret": secret, "terminals": quiet.terminals()}
    for rank in range(1, size):
        hangs.state.children.append(Child(rank, told, gpus.take_own(birth.born, rank)))


def _meet(ids: Sequence[int]) -> None:
    """The ranks' groups; all ranks come here, at the same line."""
    size = birth.born["size"]
    if world.rank == 0:
        hangs.install()
        hangs.start(size)
        publish("folder", os.getcwd())
    count("here", 1)
    wait_until(lambda: count("here") >= size, "the other ranks at the first wrap")
    device = torch.device("cpu") if gpus.is_on_cpu() else torch.device("cuda", ids[0])  # as all ranks call it
    shares = gpus.shares(ids, world.launched or size)
    loopback = not birth.launched and "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform == "linux"
    if loopback:  # all ranks are here, and a machine's own name may lead to an interface that is down
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    world.meet(world.store, world.rank, size, device, shares)
    if loopback:
        del os.environ["GLOO_SOCKET_IFNAME"]
    if world.rank:
        os.chdir(receive("folder", "rank 0's working directory"))
    _share_processors()
    signals.share()
    agree("the number of devices", len(ids))
    agree("the seed that torch was given before the first wrap", torch.initial_seed())
    exchange("the first wrap")


def _share_processors() -> None:
    """Ranks on the CPU share its cores, unless the environment says how."""
    if "OMP_NUM_THREADS" not in os.environ and world.device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // world.local_size))
    if world.device.type == "cpu":
        gpus.keep_memory()


def leave() -> None:
    """At exit: no rank goes before the others have done with it, so that none loses the store."""
    if birth.left or os.getpid() != world.pid:
        return
    birth.left = True
    if world.groups is None:
        if world.rank == 0 and world.store is not None:
            put("born", codec.encode(None))  # nothing was wrapped: those that wait end
        return
    hangs.leave()
