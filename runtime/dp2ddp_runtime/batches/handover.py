"""What the main thread hands to threads and other processes comes there whole: these can't ask the other ranks for it.

A thread that looks at a deferred tensor does so at another time on each rank. So it is gathered where it is handed
over, which all ranks come to together.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing.process
import multiprocessing.queues
import queue
import threading
from typing import Any

from ..base import nesting
from .deferred import Deferred

#: The classes and their methods that are given something for another thread or process.
_DOORS: tuple[tuple[Any, str], ...] = (
    (concurrent.futures.ThreadPoolExecutor, "submit"),
    (concurrent.futures.ProcessPoolExecutor, "submit"),
    (queue.Queue, "put"),
    (threading.Thread, "__init__"),
    (multiprocessing.queues.Queue, "put"),
    (multiprocessing.queues.SimpleQueue, "put"),
    (multiprocessing.process.BaseProcess, "__init__"),
)


def install() -> None:
    """From now on, and for the rest of the process."""
    for owner, name in _DOORS:
        real = getattr(owner, name)
        if not hasattr(real, "of_dp2ddp"):
            setattr(owner, name, _gathering(real))


def _gathering(real: Any) -> Any:
    @functools.wraps(real)
    def hand_over(*args: Any, **kwargs: Any) -> Any:
        # Another thread's (one that reads batches ahead) is in its own turn, and what it hands on stays deferred.
        if threading.get_ident() == threading.main_thread().ident:  # (`current_thread` may make a `Thread`)
            for tensor in nesting.tensors([args[1:], kwargs]):
                if isinstance(tensor, Deferred):
                    tensor.materialize()
        return real(*args, **kwargs)

    hand_over.of_dp2ddp = True  # type: ignore[attr-defined]
    return hand_over
