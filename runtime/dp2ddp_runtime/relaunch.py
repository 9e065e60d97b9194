"""Starting a script again, once per device: what torchrun does for one machine, with an end that a user can read.

The ranks get torchrun's environment variables, and a store that this process hosts, so no port can be taken in between.
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
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from . import journal, terminal
from .failure import FAILED, SIGNAL_BASE, exit_now

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

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
    return {**os.environ, **hidden} if hidden else os.environ


def relaunch(nproc: int, hide: bool = False) -> NoReturn:
    """Run this process's command again as `nproc` ranks, and exit as they do.

    With `hide` the ranks have no `RANK`, `WORLD_SIZE`, ... that the script could see.

    Exits with 0, with the exit code of the first rank that failed (128 + n if signal n ended it), or with 128 + n if
    this process got signal n (130 for Ctrl-C).

    Raises:
        SystemExit: this process's command can't be told, because it reads its script from a terminal or a pipe.
    """
    code = Job(command(), nproc, hide).run()
    # SystemExit would pass through the script's own `except` and `finally`, which are the ranks' business. What was
    # opened before is tidied up as at any exit.
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
    return [sys.executable, *given[1:]]


def _orig_argv() -> list[str]:
    """`sys.orig_argv`, which Python 3.9 lacks."""
    count, values = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
    ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(values))
    return [values[i] or "" for i in range(count.value)]


def _no_input() -> int:
    """Standard input for ranks other than 0: never anything to read, but a terminal where rank 0's is one."""
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return subprocess.DEVNULL
    opened = terminal.open_silent(size.lines, size.columns)
    return subprocess.DEVNULL if opened is None else opened[1]


class Job:
    """The ranks of one run, as child processes.

    Args:
        command: to start each rank with.
        nproc: how many ranks.
        hide: give torchrun's variables other names.
    """

    def __init__(self, command: list[str], nproc: int, hide: bool = False) -> None:
        self._command = command
        self._nproc = nproc
        self._prefix = HIDDEN if hide else ""
        self._secret = os.urandom(16).hex()
        self._store = _host_store()
        self._shared = journal.prefixed(PrefixStore(self._secret, self._store))
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._received = 0
        self._unsaid: str | None = None
        self._kill_at: float | None = None
        self._terminate_at: float | None = None

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
            self._send(getattr(signal, "SIGKILL", signal.SIGTERM))
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        common = self._environment()
        no_input = _no_input()
        for rank in range(self._nproc):
            if self._received:
                return
            env = {**common, **self._named({name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")})}
            # Own sessions: Ctrl-C comes here alone and is passed on once, and a rank's workers can be ended with it.
            self._ranks.append(
                subprocess.Popen(
                    self._command,
                    env=env,
                    cwd=_started_in,
                    stdin=None if rank == 0 else no_input,
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def _environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name != JOINED}
        size = str(self._nproc)
        place = {
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        env.update(self._named(place))
        env[LAUNCHER] = str(os.getpid())
        env[SECRET] = self._secret
        env.setdefault("OMP_NUM_THREADS", str(max(1, _cpus() // self._nproc)))
        # Sets of strings are iterated in the order of their hashes, which must be one on all ranks.
        if env.get("PYTHONHASHSEED", "random") == "random":
            env["PYTHONHASHSEED"] = str(int.from_bytes(os.urandom(4), "little"))
        if sys.platform == "linux":
            # All ranks are here, and a machine's own name may lead to an interface that is down.
            env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return env

    def _named(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {self._prefix + name: value for name, value in variables.items()}

    def _wait(self) -> int:
        code: int | None = None
        while True:
            running = 0
            for rank, process in enumerate(self._ranks):
                ended = process.poll()
                if ended is None:
                    running += 1
                elif ended != 0 and code is None:
                    code = _exit_code(ended)
                    self._one_failed(rank, ended)
            if running == 0:
                return self._final_code(code)
            self._end_if_due()
            time.sleep(_POLL)

    def _final_code(self, code: int | None) -> int:
        if self._unsaid is not None and len({process.returncode for process in self._ranks}) > 1:
            self._say(self._unsaid)
        if self._received and (code or len(self._ranks) < self._nproc):
            return SIGNAL_BASE + self._received
        return code or 0

    def _one_failed(self, rank: int, ended: int) -> None:
        """A rank has ended with an error: tell the user what can't be seen otherwise, and have the others end."""
        if self._received:
            return
        said = self._shared.add(FAILED, 1) > 1
        if ended < 0:
            self._say(f"rank {rank} of {self._nproc} was ended by {_signal_name(-ended)}")
        elif not said:
            self._unsaid = f"rank {rank} of {self._nproc} ended with exit code {ended}, and not all of them did"
        self._terminate_at = time.monotonic() + _PEERS_END_WITHIN

    def _end_if_due(self) -> None:
        now = time.monotonic()
        if self._terminate_at is not None and now > self._terminate_at:
            self._terminate_at, self._kill_at = None, now + _TERMINATED_ENDS_WITHIN
            self._send(signal.SIGTERM)
        if self._kill_at is not None and now > self._kill_at:
            self._kill_at = None
            self._send(signal.SIGKILL)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._received:  # the user means it
            self._send(signal.SIGKILL)
            return
        self._received = number
        self._shared.add(FAILED, 1)
        self._send(signal.Signals(number))
        now = time.monotonic()
        if number == signal.SIGINT:
            self._terminate_at = now + _INTERRUPTED_ENDS_WITHIN
        else:
            self._kill_at = now + _TERMINATED_ENDS_WITHIN

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to the ranks that are running, and to their own child processes."""
        for process in self._ranks:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue

    def _say(self, line: str) -> None:
        print(f"dp2ddp: {line}", file=sys.stderr, flush=True)


def launchers_store() -> Store | None:
    """In a rank: the store that the launcher hosts; None if another launcher, such as torchrun, started this rank."""
    if LAUNCHER not in os.environ:
        return None
    port = int(environment()["MASTER_PORT"])
    return PrefixStore(os.environ[SECRET], TCPStore("127.0.0.1", port, None, False, wait_for_workers=False))


def _host_store() -> Any:
    """A store for this machine alone. TCPStore's own socket would listen on every interface, whatever its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    # torch 2.4 can't give a listening socket to its other server, libuv's.
    return TCPStore(
        "127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False
    )


def die_with_launcher() -> None:
    """In a rank: end when the launcher is killed, so that no rank is left behind."""
    launcher = int(os.environ[LAUNCHER])
    if os.getppid() != launcher:
        return
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != launcher:  # it died just before
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(launcher,), name="dp2ddp-launcher", daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(1)
    os._exit(1)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exit_code(ended: int) -> int:
    return ended if ended > 0 else SIGNAL_BASE - ended


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (is the machine out of memory?)" if name == "SIGKILL" else name
