"""What this rank waits for, noted where it waits, for the watchdog to look at. Costs a few assignments."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch

#: What the errors of ranks that are in different places end with.
ADVICE = (
    "Each rank must run every line: what decides on the way there has to be the same on all of them "
    "(ddp.broadcast gives all ranks rank 0's value)"
)

#: The process groups' time-out: the watchdog has one, which knows what is waited for, and when a debugger is at work.
NEVER = timedelta(days=365)
#: The seconds that this process has run since it joined, as the watchdog counts them: none while it is stopped.
clock = 0.0
#: How often this rank has got what it waited for, and when it did last.
passed, passed_at = 0, 0.0
#: How many collectives this rank has been through.
collectives = 0
#: Where the script ended, if it has; empty as long as it runs.
left_at = ""

_ASKED_AFTER = 5.0  # seconds
_all: list[Waiting] = []  # the outermost first; a thread that reads ahead may have one, too
_sent: Waiting | None = None


class Waiting:
    """`with Waiting(...):` around a collective, or around whatever else another rank ends.

    Args:
        what: for a message; the same text on all ranks that are in the same collective.
        device: a CUDA device goes on waiting when the host doesn't any more.
    """

    def __init__(self, what: str, device: torch.device | None = None) -> None:
        self.what = what
        self.device = device
        self.event: Any = None  # the device gets to it when it has waited
        self.since = clock
        self.polls = 0  # how often it was polled and not over yet; 0 where what is waited for wakes this rank
        self.thread = threading.get_ident()

    def __enter__(self) -> Waiting:
        _all.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        global passed, passed_at, collectives, _sent
        _all.remove(self)
        passed, passed_at = passed + 1, clock
        collectives += not self.polls
        if self.device is not None and self.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(self.device))
            _sent = self


def oldest() -> Waiting | None:
    """What this rank has been waiting for longest; None if it is at work."""
    for waiting in list(_all):
        return waiting
    # Not at once: a graph that another thread captures doesn't survive the question.
    if _sent is not None and clock - _sent.since >= _ASKED_AFTER and not _sent.event.query():
        return _sent
    return None
