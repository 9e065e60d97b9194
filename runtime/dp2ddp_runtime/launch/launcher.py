"""Starting a script again, once per device: what torchrun does for one machine, with an end that a user can read.

torch's own launcher is not used: it waits 30 seconds for ranks that hang, ends with a stack trace of its own for each
failure and the exit code 1 for all of them, and leaves the ranks running when it is killed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ..base.voice import HEARD, terminal
from ..base.world import PLACE, environment
from ..ranks import signals
from ..ranks.file_sync import counted
from .failure import FAILED, LEFT, RELEASED, SIGNAL_BASE, exit_now, flush

#: Set by a rank when it joins: its process id. Whoever inherits it is the child of a rank, and is no rank.
JOINED = "DP2DDP_JOINED"

Process = subprocess.Popen[bytes]

#: How many seconds the ranks have to end after a signal that the script has no handler for.
_ENDS_WITHIN: dict[int, float] = {signal.SIGINT: 15.0, signal.SIGTERM: 5.0}
if sys.platform != "win32":
    _ENDS_WITHIN[signal.SIGHUP] = 5.0
_KILL = getattr(signal, "SIGKILL", -1)
_PEERS_END_WITHIN = 3.0  # seconds, once one rank has failed
_LOOK_EVERY = 0.05  # seconds
_LOOPBACK = "127.0.0.1"
_SET_PARENT_DEATH_SIGNAL = 1  # `PR_SET_PDEATHSIG`

# A script may change its folder before it gets to `setup`; its own path, and the arguments', are relative to this one.
started_in = os.getcwd()


def launch(own: Sequence[Mapping[str, str]]) -> NoReturn:
    """Run this process's command again as ranks, with the variables that each has for its own, and exit as they do.

    Signals are passed on to the ranks; a second one that asks for the end (Ctrl-C, SIGTERM, SIGHUP) ends them. Exits
    with 0, or with the exit code of the first rank that failed: 128 + n if signal n ended it (130 for Ctrl-C).
    """
    started_by = command()
    received: list[int] = []
    with suppress(ValueError):  # not in the main thread, which alone may ask for signals
        for number in signals.FROM_OUTSIDE:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, a shell's background job
                signal.signal(number, lambda number, frame: received.append(number))
    # TCPStore's own socket would listen on every interface; and libuv's server can't take one in every torch.
    listener = socket.create_server((_LOOPBACK, 0))
    port = listener.getsockname()[1]
    own_socket: dict[str, Any] = {"master_listen_fd": listener.detach(), "use_libuv": False}
    store = TCPStore(_LOOPBACK, port, None, True, wait_for_workers=False, **own_socket)
    nproc = len(own)
    # What the ranks' keys begin with, as everybody on this machine can connect to the store.
    secret = os.urandom(16).hex()
    job = {"WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc, "LAUNCHER": os.getpid(), "PORT": port, "SECRET": secret}
    env, output = _environment(nproc), os.dup(1) if sys.platform != "win32" else 1
    ranks: list[Process] = []
    flush()  # what was printed so far comes before what the ranks print, in a file, too
    for rank in range(nproc):
        place = {name: str(value) for name, value in {**job, "RANK": rank, "LOCAL_RANK": rank}.items()}
        place[HEARD] = str(output if rank else 1)
        # Own sessions: Ctrl-C comes here alone and is passed on once, and a rank's workers can be ended with it.
        options: dict[str, Any] = {"env": {**env, **own[rank], PLACE: json.dumps(place)}, "start_new_session": True}
        if rank:
            options.update(stdin=terminal(), stdout=subprocess.DEVNULL)
            options["pass_fds"] = [output] if output > 1 else []
        ranks.append(subprocess.Popen(started_by, cwd=started_in, **options))
    code = _Job(ranks, PrefixStore(secret, store)).wait(received)
    # SystemExit would pass through the script's own `except` and `finally`, which are the ranks' business.
    exit_now(code)


def command() -> list[str]:
    """The command this process was started with: interpreter, its options, the script or module, and the arguments.

    SystemExit if there is no such command to repeat.
    """
    if sys.version_info >= (3, 10):
        given = sys.orig_argv
    else:
        given = os.fsdecode(Path("/proc/self/cmdline").read_bytes()).split("\0")[:-1]
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or given[1:2] == ["-"] or len(given) < 2:
        raise SystemExit(
            "dp2ddp: several ranks need a script that can be started again: save it as a file, and run that"
        )
    return [sys.executable, *given[1:], *_folder_by_hydra()]


def _folder_by_hydra() -> list[str]:
    """Hydra runs a script in a folder named after the time: the argument that gives the ranks this process's folder."""
    module: Any = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return []
    config = module.HydraConfig.get()
    kind = "sweep" if "MULTIRUN" in str(getattr(config, "mode", None)) else "run"
    folder = os.path.join(config.runtime.cwd, getattr(config, kind).dir)
    quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.{kind}.dir='{quoted}'"]


def rank_here() -> int | None:
    """This process's rank, if the launcher has started it."""
    place = environment()
    return int(place["RANK"]) if "LAUNCHER" in place else None


def launchers_store() -> Any:
    """In a rank: the store that the launcher hosts; None if another launcher, such as torchrun, started this rank.

    From here on the rank ends when the launcher or torchrun is killed (on Linux), so that none is left behind.
    """
    place = environment()
    if sys.platform == "linux" and ("LAUNCHER" in place or "TORCHELASTIC_RUN_ID" in place):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if "LAUNCHER" not in place:
        return None
    if str(os.getppid()) != place["LAUNCHER"]:
        raise SystemExit("dp2ddp: the process that started the ranks has ended")
    return PrefixStore(place["SECRET"], TCPStore(_LOOPBACK, int(place["PORT"]), None, False, wait_for_workers=False))


def _environment(nproc: int) -> dict[str, str]:
    """What all ranks have in common."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    env = {"OMP_NUM_THREADS": str(max(1, cpus // nproc)), **os.environ}
    # Sets of strings are iterated in the order of their hashes, which must be one on all ranks.
    if env.get("PYTHONHASHSEED", "random") == "random":
        env["PYTHONHASHSEED"] = str(int.from_bytes(os.urandom(4), "little"))
    if sys.platform == "linux":
        # All ranks are here, and a machine's own name may lead to an interface that is down.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a store whose host was killed C++ tells at length
    return env


class _Job:
    """The ranks, until all have ended, which they have to soon once one has failed."""

    def __init__(self, ranks: Sequence[Process], shared: Any) -> None:
        self._ranks = ranks
        self._shared = shared
        self._asked: list[int] = []  # the signals that have been passed on
        self._end = math.inf

    def wait(self, received: list[int]) -> int:
        """The exit code for all; signals that come meanwhile are passed on."""
        first: int | None = None  # that failed, or left without a word
        codes: list[int | None] = [None]
        said = False
        while None in codes:
            time.sleep(_LOOK_EVERY)
            while received:
                self._pass_on(received.pop(0))
            codes = [rank.poll() for rank in self._ranks]
            released = counted(self._shared, RELEASED) if 0 in codes else 0
            others = len(codes) - released  # which wait for each other, but where one is left by `os._exit(0)`
            left_at_once = codes.count(0) > released and counted(self._shared, LEFT) < others
            if first is None and (any(codes) or left_at_once):
                first = codes.index(0) if left_at_once else next(rank for rank, code in enumerate(codes) if code)
                said = self._shared.add(FAILED, 1) > 1
            if any(codes) and not set(self._asked) & set(_ENDS_WITHIN):
                self._end = min(self._end, time.monotonic() + _PEERS_END_WITHIN)
            if time.monotonic() > self._end:
                _send(_KILL, self._ranks)
        going = len(codes) - counted(self._shared, RELEASED)
        return 0 if first is None else self._verdict(first, [code or 0 for code in codes[:going]], said)

    def _pass_on(self, number: int) -> None:
        if number in _ENDS_WITHIN and set(self._asked) & set(_ENDS_WITHIN):
            self._end = 0.0  # the second time the user means it
        elif number in _ENDS_WITHIN and not counted(self._shared, signals.handled(number)):
            self._end = time.monotonic() + _ENDS_WITHIN[number]
            if number != signal.SIGINT:  # after which a script may still fail
                self._shared.add(FAILED, 1)
        _send(number, self._ranks)
        self._asked.append(number)

    def _verdict(self, first: int, codes: Sequence[int], said: bool) -> int:
        """Tell what has ended the job, if no rank has, and end what the ranks have left behind."""
        _send(_KILL, self._ranks, ended=True)
        code = codes[first] or next(filter(None, codes), 0)
        asked = [number for number in self._asked if number in _ENDS_WITHIN or number == -code]
        if code < 0 and asked:
            return SIGNAL_BASE + asked[0]
        what = f"ended with exit code {codes[first]}, and not all of them did"
        if codes[first] < 0:
            memory = "; is the machine out of memory?" if code == -signal.SIGKILL else ""
            what = f"was ended by signal {-code} ({signal.strsignal(-code)}{memory})"
        if codes[first] < 0 or (len(set(codes)) > 1 and not said):
            print(f"dp2ddp: rank {first} of {len(codes)} {what}", file=sys.stderr)
        return SIGNAL_BASE - code if code < 0 else code


def _send(number: int, ranks: Sequence[Process], ended: bool = False) -> None:
    """Send a signal to the ranks that are running, and one that ends them to their child processes, too."""
    for rank in ranks:
        if ended or rank.poll() is None:
            with suppress(ProcessLookupError):
                (os.killpg if number == _KILL else os.kill)(rank.pid, number)
