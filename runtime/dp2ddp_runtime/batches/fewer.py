"""Going on with fewer ranks, where the script turns out to ask for fewer GPUs than there are ranks.

How many it asks for is known for sure where it wraps a model, and `setup` has to stand far above that. So the ranks
that are too many end there, and the others go on as if there had never been more. What all ranks have had in common
until then (random streams, files, whatever the script has made) stays as it is.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from ..base import world
from ..base.location import here
from ..launch import devices, failure
from ..ranks import direct, file_sync, group
from ..ranks.exchange import Divergence, exchange
from .deferred import Deferred

#: The `RankIterator`s that have not come to their ends: what they have fetched, each rank has a part of.
reading: weakref.WeakSet[Any] = weakref.WeakSet()


def release_idle(stacklevel: int = 2) -> None:
    """End the ranks that have nothing to do, where no model is wrapped. A collective.

    For scripts that wrap their models under a condition which isn't known at `setup`, behind the last of these lines:
    rank 0 goes on as the script's only process, and the other GPUs are free. Ranks whose number the user has chosen
    (torchrun, `DP2DDP_NPROC`) all go on, each with all of the work. Loaders that are being read go on where they are,
    unless a thread of the script's reads one. The warning names a line as `warnings.warn` does.

    Raises:
        RuntimeError: rank 0 has another GPU than the first one that the script has made visible since.
    """
    place = world.current()
    if place.world_size == 1 or not _is_free(place):
        return
    gc.collect()  # iterators that only wait for that on some ranks, and models that only gave keys
    read = sorted(reading, key=lambda each: each.number)
    if not place.models and not any(each.is_in_thread for each in read):
        for batches in read:
            batches.fetch_what_is_on_its_way()
        _go_on_with(1, "no model is wrapped", stacklevel + 1)
        for batches in read:
            batches.go_on_alone()


def fit(device_ids: devices.DeviceIds) -> int:
    """The number of replicas of a model that is wrapped for these devices. A collective where that is less than ranks.

    Of the first model ranks that are too many end, unless `setup` was given the devices. Else they go on, and have no
    replica of it.

    Raises:
        RuntimeError: they are too few, as some have ended; they have other GPUs than those that the script has made
            visible since; or as `devices.compare_wrap`.
    """
    place, ids, chosen = world.current(), devices.parse_device_ids(device_ids), devices.chosen_since()
    count = len(ids or chosen)
    if world.wants_cpu() or not _is_free(place):
        devices.compare_wrap(device_ids)
        return place.world_size
    if 0 < count < place.world_size:
        if not place.takes_all or place.wraps or reading:
            return count
        _go_on_with(count, f"a model is wrapped for GPU {', '.join(map(str, ids or chosen))}", 5)
        if chosen:
            os.environ[world.GPUS] = str(len(chosen))
    elif place.fewer_at and (count or int(os.environ[world.GPUS])) > place.world_size:
        raise RuntimeError(
            f"a model is wrapped for more devices at {here().line} than at {place.fewer_at}, where the other ranks "
            "have ended: give ddp.setup(device_ids=...) all devices that are used"
        )
    devices.compare_wrap(device_ids)
    return place.world_size


def _is_free(place: world.World) -> bool:
    """Whether nobody has said how many ranks there shall be."""
    return bool(place.set_up_at) and "LAUNCHER" in world.environment() and "DP2DDP_NPROC" not in os.environ


def _go_on_with(count: int, why: str, stacklevel: int) -> None:
    place = world.current()
    told = exchange("the number of ranks that go on", (count, os.environ.get(world.GPU, "")))
    if len({each for each, _ in told}) > 1:
        raise Divergence("the ranks' models are wrapped for different numbers of devices")
    ours, theirs = [gpu for _, gpu in told[:count]], devices.chosen_since()[:count]
    if theirs and {*ours} != {*theirs}:
        them = ",".join(theirs)
        raise RuntimeError(
            f"the script makes GPU {them} visible, behind the ddp.setup() at {place.set_up_at}, which has taken "
            f"{','.join(ours)}: start it with CUDA_VISIBLE_DEVICES={them}, or give setup device_ids={them!r}"
        )
    for batch in _deferred():
        batch.materialize()
    before, less = place.world_size, place.world_size - count
    group.leave()
    store: Any = place.store
    if place.rank >= count:
        _end(store)
    direct.keep(count)
    place.world_size = place.local_world_size = count
    place.fewer_at = here().line
    group.join_anew(place)
    file_sync.wait_until(lambda: file_sync.counted(store, failure.RELEASED) >= less, "the end of other ranks")
    warnings.warn(
        f"{why}, so {count} rank(s) go on, on the first GPUs: the other {less} of {before} end, and theirs are free",
        stacklevel=stacklevel,
    )


def _deferred() -> list[Deferred]:
    """The batches of which this rank has its rows, in the order in which they were made, as on all ranks."""
    gc.collect()  # what only waits for that on some ranks
    found = [each for each in gc.get_objects() if type(each) is Deferred and not each.is_materialized]
    return sorted(found, key=lambda each: each.number)


def _end(store: Any) -> NoReturn:
    """This rank isn't asked for. Its processes end; what the script has registered for the end is the others' to do."""
    for child in multiprocessing.active_children():
        child.terminate()
    with suppress(RuntimeError):
        store.add(failure.RELEASED, 1)
    failure.flush()
    os._exit(0)
