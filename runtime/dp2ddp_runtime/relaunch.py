"""Starting a script again, once per device: what torchrun does for one machine, with an end that a user can read.

torch's own launcher is not used: it waits 30 seconds for ranks that hang, ends with a stack trace of its own for each
failure and the exit code 1 for all of them, and leaves the ranks running when it is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from . import file_sync, terminal
from .failure import FAILED, SIGNAL_BASE, exit_now

#: Set for the ranks: the process id of the launcher.
LAUNCHER = "DP2DDP_LAUNCHER"
#: Set by a rank when it joins: its process id. Whoever inherits it is the child of a rank, and is no rank.
JOINED = "DP2DDP_JOINED"
#: What torchrun's variables are called where the script itself must not see them.
HIDDEN = "DP2DDP_ENV_"
#: Set for the ranks: what the names of their keys in the store begin with. The store has no password, and whoever may
#: run programs on this machine can connect to it.
SECRET = "DP2DDP_SECRET"

TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]
PrefixStore: Any = dist.PrefixStore  # type: ignore[attr-defined]

_LOOPBACK = "127.0.0.1"
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_POLL = 0.05  # seconds
_PEERS_END_WITHIN = 3.0  # seconds for the others to end by themselves once one rank has failed
_INTERRUPTED_ENDS_WITHIN = 15.0  # seconds after Ctrl-C, for a script that saves its model then
_TERMINATED_ENDS_WITHIN = 5.0  # seconds from SIGTERM to SIGKILL

# A script may change its folder before it gets to `setup`; its own path, and the arguments', are relative to this one.
_started_in = os.getcwd()


def environment() -> Mapping[str, str]:
    """This process's environment variables, with those that tell a rank its place under torchrun's names."""
    hidden = {name[len(HIDDEN) :]: value for name, value in os.environ.items() if name.startswith(HIDDEN)}
    return {**os.environ, **hidden}


def relaunch(nproc: int, hide: bool = False) -> NoReturn:
    """Run this process's command again as `nproc` ranks, and exit as they do.

    With `hide` the ranks have no `RANK`, `WORLD_SIZE`, ... that the script could see.

    Exits with 0, with the exit code of the first rank that failed (128 + n if signal n ended it), or with 128 + n if
    this process got signal n (130 for Ctrl-C).

    Raises:
        SystemExit: this process's command can't be told, because it reads its script from a terminal or a pipe.
    """
    code = Job(command(), nproc, hide).run()
    # SystemExit would pass through the script's own `except` and `finally`, which are the ranks' business.
    exit_now(code)


def command() -> list[str]:
    """The command this process was started with: interpreter, its options, the script or module, and the arguments.

    Raises:
        SystemExit: there is no such command to repeat.
    """
    given = list(sys.orig_argv) if sys.version_info >= (3, 10) else _orig_argv()
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


def _orig_argv() -> list[str]:
    """`sys.orig_argv`, which Python 3.9 lacks."""
    count, values = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
    ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(values))
    return [values[i] or "" for i in range(count.value)]


def launchers_store() -> Any:
    """In a rank: the store that the launcher hosts; None if another launcher, such as torchrun, started this rank."""
    if LAUNCHER not in os.environ:
        return None
    port = int(environment()["MASTER_PORT"])
    return PrefixStore(os.environ[SECRET], TCPStore(_LOOPBACK, port, None, False, wait_for_workers=False))


def die_with_launcher() -> None:
    """In a rank: end when the launcher is killed, so that no rank is left behind."""
    launcher = os.environ.get(LAUNCHER)

    def is_there() -> bool:
        return str(os.getppid()) == launcher

    def watch() -> None:
        while is_there():
            time.sleep(1)
        os._exit(1)

    if not is_there():
        return
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if not is_there():  # it died just before
            os._exit(1)
    else:
        threading.Thread(target=watch, name="dp2ddp-launcher", daemon=True).start()


class Job:
    """The ranks of one run, as child processes that are each started with `command`."""

    def __init__(self, command: list[str], nproc: int, hide: bool = False) -> None:
        self._command = command
        self._nproc = nproc
        self._prefix = HIDDEN if hide else ""
        self._secret = os.urandom(16).hex()
        self._store = _host_store()
        self._shared = file_sync.prefixed(PrefixStore(self._secret, self._store))
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._received = 0  # the signal that this process got
        self._unsaid = ""
        self._due: list[tuple[float, signal.Signals]] = []  # what to send the ranks that are still there, and when

    def run(self) -> int:
        """Start the ranks and wait for their end. Returns the exit code for the whole."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
            # Ignored signals (nohup, a shell's background job) stay ignored.
            before = {n: signal.signal(n, self._pass_on) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
        try:
            self._start()
            return self._wait()
        finally:
            self._send(signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        common = self._environment()
        no_input = _no_input()
        for rank in range(self._nproc):
            if self._received:
                return
            place = {self._prefix + name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
            # Own sessions: Ctrl-C comes here alone and is passed on once, and a rank's workers can be ended with it.
            self._ranks.append(
                subprocess.Popen(
                    self._command,
                    env={**common, **place},
                    cwd=_started_in,
                    stdin=None if rank == 0 else no_input,
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def _environment(self) -> dict[str, str]:
        place = {
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(self._nproc)),
            **dict.fromkeys(("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), "0"),
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        env = {**os.environ, **{self._prefix + name: value for name, value in place.items()}}
        env.pop(JOINED, None)
        env.update({LAUNCHER: str(os.getpid()), SECRET: self._secret})
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        env.setdefault("OMP_NUM_THREADS", str(max(1, cpus // self._nproc)))
        # Sets of strings are iterated in the order of their hashes, which must be one on all ranks.
        if env.get("PYTHONHASHSEED", "random") == "random":
            env["PYTHONHASHSEED"] = str(int.from_bytes(os.urandom(4), "little"))
        if sys.platform == "linux":
            # All ranks are here, and a machine's own name may lead to an interface that is down.
            env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return env

    def _wait(self) -> int:
        failed: int | None = None
        while True:
            codes = [process.poll() for process in self._ranks]
            if failed is None and any(codes):
                failed = next(rank for rank, code in enumerate(codes) if code)
                self._one_failed(failed)
            if None not in codes:
                break
            while self._due and self._due[0][0] < time.monotonic():
                self._send(self._due.pop(0)[1])
            time.sleep(_POLL)
        if self._unsaid and len(set(codes)) > 1:
            _say(self._unsaid)
        if self._received and (failed is not None or len(self._ranks) < self._nproc):
            return SIGNAL_BASE + self._received
        code = 0 if failed is None else self._ranks[failed].returncode
        return code if code >= 0 else SIGNAL_BASE - code

    def _one_failed(self, rank: int) -> None:
        """A rank has ended with an error: tell the user what can't be seen otherwise, and have the others end."""
        if self._received:
            return
        said = self._shared.add(FAILED, 1) > 1
        code = self._ranks[rank].returncode
        if code < 0:
            _say(f"rank {rank} of {self._nproc} was ended by {_signal_name(-code)}")
        elif not said:
            self._unsaid = f"rank {rank} of {self._nproc} ended with exit code {code}, and not all of them did"
        self._end_within(_PEERS_END_WITHIN)

    def _end_within(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._due = [(end, signal.SIGTERM), (end + _TERMINATED_ENDS_WITHIN, signal.SIGKILL)]

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._received:  # the user means it
            self._send(signal.SIGKILL)
            return
        self._received = number
        self._shared.add(FAILED, 1)
        self._send(signal.Signals(number))
        self._end_within(_INTERRUPTED_ENDS_WITHIN)
        if number != signal.SIGINT:
            self._due = [(time.monotonic() + _TERMINATED_ENDS_WITHIN, signal.SIGKILL)]

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to the ranks that are running, and to their own child processes."""
        for process in self._ranks:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def _host_store() -> Any:
    """A store for this machine alone. TCPStore's own socket would listen on every interface, whatever its address."""
    listener = socket.create_server((_LOOPBACK, 0))
    port = listener.getsockname()[1]
    # The other server that torch has, libuv's, can't take a listening socket in every version.
    return TCPStore(
        _LOOPBACK, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False
    )


def _no_input() -> int:
    """Standard input for ranks other than 0: never anything to read, but a terminal where rank 0's is one."""
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return subprocess.DEVNULL
    opened = terminal.open_silent(size.lines, size.columns)
    return subprocess.DEVNULL if opened is None else opened[1]


def _say(line: str) -> None:
    print(f"dp2ddp: {line}", file=sys.stderr, flush=True)


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (is the machine out of memory?)"
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
