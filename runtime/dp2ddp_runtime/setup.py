"""`setup`: this process becomes a rank, starts the ranks, or goes on as the only one."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from .base import waiting, world
from .base.location import here
from .batches import deferred, unsharded
from .launch import devices, failure, launcher, watchdog
from .launch.quiet import adopt_terminal, hold_until_setup, quiet
from .model import agreement
from .rank_zero import checkpoint, handles, hands
from .rank_zero.main_only import hide_windows
from .ranks import collectives, direct, file_sync, group, rng, signals

_has_left = False
_show_output = hold_until_setup()
if file_sync.is_handless_child:
    hands.install(None)
devices.take_own()
_launched_as = None if launcher.JOINED in os.environ else launcher.rank_here()
_go_on_with_files = None if _launched_as is None else handles.hold_early_files(_launched_as)


def setup(
    device_ids: devices.DeviceIds = None,
    backend: str | None = None,
    init_method: str | None = None,
    seed: int | None = None,
    timeout: float | timedelta | None = None,
    beside_ddp: bool = False,
) -> None:
    """Join the other ranks, or start them.

    - Under a launcher (torchrun, SLURM's `srun`, whatever sets `RANK` and `WORLD_SIZE`): joins the process group, takes
      this rank's GPU, which is the only one it sees from then on, makes the random streams those of rank 0, and
      silences the ranks other than 0.
    - Started plainly (`python train.py`, `python -m package.train`): starts the same command again once per device,
      waits, and exits as it does. How many: `DP2DDP_NPROC` if set, else one per entry of `device_ids`, else one per
      CUDA device. For one (a single GPU, or a CPU) the process goes on by itself, without process group and sockets.
    - A second call, and a call in a child process (a DataLoader worker that imports the script again), does nothing.

    Args:
        device_ids: CUDA devices, as `nn.DataParallel` takes them: a sequence of indices, `"cuda:1"` or `torch.device`;
            a single one. Local rank r takes entry r. None: all visible ones. None in it (`[]`): the CPU. Text such as
            `"2,3"` is what CUDA_VISIBLE_DEVICES shall be, for scripts that set it further down.
        backend: of `torch.distributed.init_process_group`. None: NCCL for CUDA tensors and gloo for the rest.
        init_method: where ranks meet that a launcher started: `env://` (the default), `tcp://host:port`, `file:///path`.
        seed: if given, `seed_everything(seed)` follows.
        timeout: how long a rank waits for the others while none of them moves, in seconds. None: torch's default, 1800.
        beside_ddp: the script can also set up DistributedDataParallel itself. Then this call does nothing once it
            has, nor under a launcher, which means that part of the script; the rest of the runtime works as for a
            single process there. Ranks that a plain start makes don't see `RANK` and `WORLD_SIZE`.

    Raises:
        SystemExit: `device_ids` or the environment ask for what isn't there, or a rank has come through a collective
            such as `broadcast` before; with a line that says so.
    """
    env = world.environment()
    launched = "RANK" in env and world.PLACE not in env
    if world.current().ready or (beside_ddp and (dist.is_initialized() or launched)):
        devices.ask_cuda()
        _show_output(show=True)
        return
    world.hide_cuda_if_unwanted()
    chosen = devices.parse_device_ids(devices.make_visible(device_ids))
    is_rank = "RANK" in env and "WORLD_SIZE" in env
    is_worker = multiprocessing.parent_process() is not None
    # A worker that imports the script again, or a script that a rank starts: goes on alone, and as silent as its rank.
    is_child = env.get(launcher.JOINED, str(os.getpid())) != str(os.getpid()) or (is_worker and not is_rank)
    if not is_rank and not is_child:
        nproc = devices.process_count(chosen)
        if nproc > 1:
            launcher.launch(devices.gpu_variables(chosen, nproc))
    _show_output(show=False)
    place = _place(env) if is_rank or is_child else world.World()
    if place.rank != 0:
        quiet()
        hide_windows()
    _check_that_none_met(place)
    place.device = torch.device("cpu") if is_child and is_worker else devices.choose_device(chosen, place)
    devices.ask_cuda()
    if is_child:
        place.world_size = place.local_world_size = 1
    elif is_rank:
        _join(place, backend, init_method, timeout)
    place.ready, place.set_up_at = True, "" if is_child else here().line
    place.takes_all = device_ids is None
    world.enter(place)
    if is_child:
        return
    if place.world_size > 1 and os.environ.get("PYTHONHASHSEED", "random") == "random":
        warnings.warn(
            "each rank hashes strings with a seed of its own: a loop over a set of strings takes another order on each "
            "rank, and by what is built or drawn in it the ranks diverge; start with `PYTHONHASHSEED=0 torchrun ...`",
            stacklevel=2,
        )
    if seed is None:
        rng.adopt_main_state()
    else:
        rng.seed_everything(seed)


def _place(env: Mapping[str, str]) -> world.World:
    """This rank, as torchrun's or SLURM's variables say (https://pytorch.org/docs/stable/elastic/run.html)."""
    rank, size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
    count = size if world.accelerator() != torch.device("cuda") or world.wants_cpu() else torch.cuda.device_count()
    local_size = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or min(size, count))
    local_rank = int(env.get("LOCAL_RANK") or env.get("SLURM_LOCALID") or rank % local_size)
    return world.World(rank=rank, local_rank=local_rank, world_size=size, local_world_size=local_size)


def _check_that_none_met(place: world.World) -> None:
    early = world.current().met_early
    if early and place.world_size > 1:
        raise SystemExit(
            f"dp2ddp: {early} ran before ddp.setup() at {here().line}, where each rank has its own value: call "
            "ddp.setup() above it (it may be called again), or move it below"
        )


def _join(place: world.World, backend: str | None, init_method: str | None, timeout: float | timedelta | None) -> None:
    """Join the process group, and keep its store for what must not be a collective (`file_sync`)."""
    os.environ[launcher.JOINED] = str(place.pid)
    if _go_on_with_files is not None:
        _go_on_with_files()
    if place.world_size == 1:
        return
    if timeout is not None:
        place.timeout = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    place.store = launcher.launchers_store() or _meet(init_method or "env://", place)
    world.enter(place)
    watchdog.start(place.store)
    backend = backend or devices.choose_backend(place)
    # The runtime also sends things that live on the CPU: batches, metrics.
    backend = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
    with waiting.Waiting("the other ranks in ddp.setup()"):
        group.join(backend, place)
        direct.join(place)
    if place.device.type == "cpu":
        devices.keep_memory()
    group.hide_variables()
    adopt_terminal(place.store)
    failure.install()
    signals.install()
    agreement.watch_steps()
    deferred.watch_handover()
    unsharded.watch()
    rng.watch_seeding()
    rng.watch_states()
    rng.share_entropy(place.store)
    hands.install(place.store, checkpoint.onto_own_device(torch.load))
    atexit.register(_leave)
    if multiprocessing.parent_process() is None:  # which ends its processes by `os._exit` itself
        _leave_before_exit(place.pid)


def _meet(url: str, place: world.World) -> Any:
    """The ranks' corner of the store at `url`: torchrun keeps its store, in which the addresses of ended ranks stay."""
    if url.startswith("tcp://"):  # rank 0 hosts it, as documented; older torch looks for torchrun's store there
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    os.environ.update({name: text for name, text in world.environment().items() if name.startswith("MASTER_")})
    limit = timedelta(seconds=place.timeout)
    meeting = dist.rendezvous(url, place.rank, place.world_size, timeout=limit)  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"dp2ddp/{attempt}", next(iter(meeting))[0])  # type: ignore[attr-defined]


def _leave_before_exit(rank: int) -> None:
    """`os._exit(0)` of this rank's process, of which `atexit` doesn't hear, ends it as its last line would."""
    real = os._exit

    @functools.wraps(real)
    def leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == rank:
            _leave()
        real(status)

    os._exit = leave


def _leave() -> None:
    """At exit: let no rank lose the store, and end the process group's threads."""
    global _has_left
    store = file_sync.store()
    if store is None or group.whole() is None or _has_left:
        return
    _has_left = True
    hands.end()
    collectives.let_threads_go()
    if failure.failed:  # the others may never answer
        return
    with suppress(RuntimeError):  # rank 0 is gone already, and its store; or a rank takes too long
        waiting.left_at = failure.exit_at or "its end"
        store.add(failure.LEFT, 1)
        # Longer than the others wait for this rank: where it is has to be told before its connections end.
        file_sync.wait_until(_all_have_left, "the others' end", 2 * world.current().timeout)
    group.leave()


def _all_have_left() -> bool:
    store: Any = file_sync.store()
    left = file_sync.counted(store, failure.LEFT) >= world.world_size()
    return left or file_sync.counted(store, failure.FAILED) > 0
