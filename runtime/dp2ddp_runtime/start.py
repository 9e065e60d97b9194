"""`setup`: from here on this process is rank 0 of several, or it waits to be another rank.

The ranks are born at the first wrap (`birth`). Those that rank 0, or a launcher, has started wait here until it has
come there; then they take its random states and run to the same line.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import codec, files, gpus, hangs, place, quiet, streams
from .birth import ANEW, LAUNCHED, LOOPBACK, OF, PLACE, birth, leave, start_others
from .store import ask, has, publish, published, unpublished
from .world import waiting, world

_POLL = 0.02  # seconds
_LAUNCHERS = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|WORLD_NAME|NAME)|MASTER_\w+|TORCHELASTIC_\w+")
_SET_PARENT_DEATH_SIGNAL = 1  # https://man7.org/linux/man-pages/man2/prctl.2.html


def setup(
    init_method: str | None = None,
    seed: int | None = None,
    timeout: float | timedelta | None = None,
    beside_ddp: bool = False,
    start: str = "wrap",
) -> None:
    """From here on this process can become rank 0 of several. Stands on top of the started file: behind the imports of
    libraries, and above those of the script's own modules.

    Starts nothing. At the first wrap (`wrap_model`) that wants several devices, the same command is started once for
    each further one, and runs up to the same line. A run without such a wrap stays a single process.
    Under a launcher (torchrun, SLURM's `srun`, whatever sets `RANK` and `WORLD_SIZE`) rank 0 goes on, and the others
    wait here until it has come to its first wrap. A second call, and one in a child process (a loader's worker that
    imports the script again), does nothing.

    Args:
        init_method: where ranks that a launcher started meet: `env://`, `tcp://host:port`, `file:///path`.
        seed: if given, `seed_everything(seed)` follows.
        timeout: seconds after which a job ends in which nothing moves. None: 1800.
        beside_ddp: the script can also set up DistributedDataParallel itself: then this does nothing once it has, nor
            under a launcher.
        start: "wrap", or "now": all ranks start at once, and none waits for rank 0's first wrap. For scripts that load
            for long before they wrap.

    Raises:
        SystemExit: the environment asks for what isn't there, with a line that says so.
    """
    if start not in ("wrap", "now"):
        raise ValueError(f'start must be "wrap" or "now", not {start!r}')
    birth.called = True
    launched = {} if PLACE in os.environ else _launched()
    if birth.begun or _is_child() or (beside_ddp and (dist.is_initialized() or "RANK" in os.environ)):
        return
    if os.environ.get("DP2DDP_DEVICE", "").lower() == "cpu" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    birth.launched, birth.began_at = launched, time.monotonic()
    if timeout is not None:
        hangs.state.timeout = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if PLACE in os.environ or launched or gpus.at_most() > 1:
        _begin(init_method)
        if start == "now" and world.rank == 0 and not launched:
            ids = gpus.wanted(None)
            if len(ids) > 1:
                start_others(ids)
    if seed is not None:
        streams.seed_everything(seed)


def _is_child() -> bool:
    """Whether this is a process of a rank's: a loader's worker, or a program that another rank than 0 has started."""
    return multiprocessing.parent_process() is not None or os.environ.get(OF, str(os.getpid())) != str(os.getpid())


def _begin(init_method: str | None) -> None:
    """This process may become one of several. It is rank 0, or waits to be another one."""
    if birth.asked_at:
        raise SystemExit(
            f"dp2ddp: {birth.asked_at} asks for what is rank 0's (ddp.broadcast, ddp.main_only) above ddp.setup(), "
            "where each rank would have its own: put ddp.setup() above the import of that module"
        )
    birth.begun = unpublished.collects = True
    world.pid = os.getpid()  # it may have been forked from one that has imported this
    birth.command, birth.folder = _command(), os.getcwd()
    birth.environment = {**os.environ}
    own = os.environ.get(PLACE)
    if own or birth.launched:
        _join(json.loads(own) if own else None, init_method)
    elif _is_plain() and gpus.devices() > 1:
        _fix_hashes({})
    streams.own_start()
    if world.rank == 0:
        birth.born = {"states": streams.capture()}
    files.install()
    quiet.share_answers(ask)
    gpus.show_asked()
    atexit.register(leave)


def _join(own: Any, init_method: str | None) -> None:
    """In a process that rank 0 or a launcher has started: its place, and the others' wait for the first wrap."""
    if own:
        world.rank = world.local_rank = own["rank"]
        tcp: Any = dist.TCPStore  # type: ignore[attr-defined]
        store = tcp(LOOPBACK, own["port"], None, False, wait_for_workers=False)
        world.store = dist.PrefixStore(own["secret"], store)  # type: ignore[attr-defined]
        hangs.state.has_parent = True
        _die_with_parent()
    else:
        world.rank = int(birth.launched["RANK"])
        world.local_rank, world.launched = int(birth.launched["LOCAL_RANK"]), int(birth.launched["LOCAL_WORLD_SIZE"])
        if world.rank == 0 and _is_plain():
            _fix_hashes({})
        world.store = _launchers_store(init_method or "env://")
        if "TORCHELASTIC_RUN_ID" in birth.launched:
            _die_with_parent()
        for name in [name for name in os.environ if _LAUNCHERS.fullmatch(name)]:
            del os.environ[name]  # who sees them joins a group, or takes a part of the work
    if world.rank == 0:
        publish("rank 0", [socket.gethostname(), os.getpid()])
        return
    os.environ[OF] = str(os.getpid())
    birth.terminals = own["terminals"] if own else _given_anew() or quiet.terminals()
    hangs.state.aloud = quiet.silence(birth.terminals, stderr=not own)
    hangs.install()
    born = birth.born = hear_born()
    if born is None or world.rank >= born["size"]:
        os._exit(0)
    change = gpus.take_own(born, world.local_rank)
    if not own and _is_plain():
        _fix_hashes(change)
    try:
        gpus.hold(change)
    except SystemExit as error:  # which Python would write to where this rank's output goes: nowhere
        hangs.say(f"{error}\n")
        raise SystemExit(1) from None
    hangs.start(born["size"])
    streams.restore(born["states"])


def hear_born() -> Any:
    """What rank 0 tells at its first wrap; None if it ends without one. As long as its process is there."""
    with waiting("rank 0's first wrap"):
        try:
            while not has("born"):
                time.sleep(_POLL)
                if _is_gone(published("rank 0")):
                    return None
            return codec.decode(world.store.get("born"))
        except RuntimeError:  # rank 0 has hosted the store
            return None


def _is_gone(at: Any) -> bool:
    """Whether rank 0's process, of which it has told, was on this machine and has ended."""
    if at is None or not os.path.isdir("/proc/self"):
        return False
    machine, process = at[0]
    return bool(machine == socket.gethostname() and not os.path.exists(f"/proc/{process}"))


def _launched() -> Mapping[str, str]:
    """The variables that a launcher of several processes has set, under torchrun's names; empty without one."""
    env = {**os.environ, **json.loads(os.environ.get(LAUNCHED, "{}"))}
    if "RANK" not in env and env.get("SLURM_STEP_NUM_TASKS", "1") != "1":  # `srun`, one task for each device
        first = re.match(r"([^,\[]*)(?:\[(\w+))?", env["SLURM_STEP_NODELIST"])  # as n[001-004,17],m3
        # Each step of a job has a port of its own.
        port = 20000 + (int(env["SLURM_JOB_ID"]) * 10 + int(env["SLURM_STEP_ID"])) % 20000
        env.setdefault("MASTER_ADDR", "".join(part or "" for part in (first.groups() if first else ())))
        env.setdefault("MASTER_PORT", str(port))
        env |= {"RANK": env["SLURM_PROCID"], "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"]}
        env.setdefault("LOCAL_RANK", env.get("SLURM_LOCALID", env["RANK"]))
        env.setdefault("LOCAL_WORLD_SIZE", env.get("SLURM_NTASKS_PER_NODE", env["WORLD_SIZE"]))
    if "RANK" not in env or int(env.get("WORLD_SIZE", "1")) < 2:
        return {}
    here = env.setdefault("LOCAL_WORLD_SIZE", str(gpus.local_size(int(env["WORLD_SIZE"]))))
    env.setdefault("LOCAL_RANK", str(int(env["RANK"]) % int(here)))
    return env


def _launchers_store(url: str) -> Any:
    """The ranks' corner of the store at `url`: torchrun keeps its store, in which the keys of ended ranks stay."""
    if url.startswith("tcp://"):  # rank 0 hosts it, as documented; older torch looks for torchrun's store there
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    os.environ.update({name: text for name, text in birth.launched.items() if name.startswith("MASTER_")})
    rank, size = int(birth.launched["RANK"]), int(birth.launched["WORLD_SIZE"])
    meeting: Any = dist.rendezvous(url, rank, size, timeout=timedelta(seconds=hangs.state.timeout))  # type: ignore[attr-defined]
    attempt = birth.launched.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"dp2ddp/{attempt}", next(iter(meeting))[0])  # type: ignore[attr-defined]


def _die_with_parent() -> None:
    """This rank ends when the process that has started it does, however that ends (on Linux; elsewhere `hangs`)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


# ---- the command ---------------------------------------------------------------------------------------------------


def _command() -> list[str]:
    """How the program that runs here is started again: without debuggers, profilers and `-i`. Empty if it can't be.

    By the frame that runs `__main__`, as a debugger runs it, too.
    """
    frame: Any = sys._getframe(1)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    while frame is not None:
        names = frame.f_globals
        if names.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            spec = names.get("__spec__")
            if spec is not None and spec.loader is not None and spec.name != "__main__":
                name = spec.name[: -len(".__main__")] if spec.name.endswith(".__main__") else spec.name
                return [sys.executable, *flags, "-m", name, *sys.argv[1:]]
            path = str(names.get("__file__") or "")
            if os.path.isfile(path):
                return [sys.executable, *flags, path, *sys.argv[1:]]
        frame = frame.f_back
    return []


def _given() -> list[str]:
    """The command line of this process."""
    if sys.version_info >= (3, 10):
        return list(sys.orig_argv)
    with suppress(OSError), open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    return []


def _is_plain() -> bool:
    """Whether Python itself runs the started file (no debugger), and lines of modules alone have led here.

    So that this process can begin anew. What a function has done before it called `setup` isn't known.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and os.path.realpath(frame.f_code.co_filename).startswith(place.HERE):
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__") != "__main__":  # a module that the started file imports
        if frame.f_code.co_name != "<module>" and not frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "<module>":
        return False
    name = _started(_given()[1:])
    spec, path = frame.f_globals.get("__spec__"), str(frame.f_globals.get("__file__", ""))
    if spec is not None:
        return name in (spec.name, spec.name.rpartition(".__main__")[0])
    return os.path.exists(name) and os.path.exists(path) and os.path.samefile(name, path)


def _started(arguments: Sequence[str]) -> str:
    """The file or module that the interpreter was told to run; empty if it was told none."""
    options = iter(arguments)
    for option in options:
        if option == "-m":
            return next(options, "")
        if not option.startswith("-"):
            return option
        if option in ("-W", "-X"):
            next(options, "")
        if option.startswith("-c"):
            break
    return ""


def _fix_hashes(change: Mapping[str, str]) -> None:
    """Become the same command anew where sets of strings would have another order on each rank, or a variable differs.

    Only ahead of all that the script does. Python takes the order from the environment, when it starts.
    """
    change = {name: text for name, text in change.items() if os.environ.get(name) != text} if gpus.is_fixed() else {}
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        change = {**change, "PYTHONHASHSEED": "0"}
    if not change or sys.platform == "win32" or _given_anew() is not None:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if world.rank:
        os.dup2(hangs.state.aloud, 2)
    anew = {**birth.environment, **change, ANEW: json.dumps([os.getpid(), *birth.terminals])}
    os.execve(sys.executable, [sys.executable, *_given()[1:]], anew)


def _given_anew() -> list[str] | None:
    """What `quiet.terminals` gave in this process before it began its command anew; None if it hasn't."""
    process, *terminals = json.loads(os.environ.get(ANEW, "[0]"))
    return terminals if process == os.getpid() else None
