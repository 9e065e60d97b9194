"""Hangs: tells where each rank stands when one waits for another for long, and ends a job in which nothing can move.

Each rank has a thread that looks from time to time. As soon as any of them waits for some seconds, all tell the store
where they are; the lowest one that can still tell (mostly rank 0) reads that, and speaks for all.
"""

from __future__ import annotations

import atexit
import bdb
import faulthandler
import json
import linecache
import os
import re
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Optional

from ..base import waiting, world
from ..base.location import located
from ..ranks.file_sync import counted, tell
from . import failure

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

#: The seconds after which a rank that waits for another one makes rank 0 tell where all of them are.
STUCK_AFTER = "DP2DDP_STUCK_AFTER"
_PATIENCE = 1.0  # seconds that a rank waits before the ranks tell each other
_SETTLED_AFTER = 3.0  # seconds; what a rank waits for may have come while a busy machine leaves it no time to see that
_LOOK_EVERY = 1.0  # seconds
_SILENT_AFTER = 3.5  # looks
_STOPS_WITHIN = 5.0  # seconds

_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)")
_LINE = re.compile(r'  File "(.*)", line (\d+) in ')
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")

State = Optional["dict[str, Any]"]


def start(store: Store) -> None:
    """Look after this rank from now on. SystemExit if `DP2DDP_STUCK_AFTER` is no number."""
    given = os.environ.get(STUCK_AFTER, "60")
    try:
        stuck_after = max(0.0, float(given))
    except ValueError:
        raise SystemExit(f"dp2ddp: {STUCK_AFTER} must be a number of seconds, not {given!r}") from None
    watchdog = _Watchdog(store, stuck_after)
    threads = [threading.Thread(target=task, daemon=True) for task in (watchdog.count_seconds, watchdog.watch)]
    for thread in threads:
        thread.start()

    def stop() -> None:
        """The interpreter must not end while a thread is in the store: C++ aborts the process."""
        watchdog.over.set()
        threads[1].join(_STOPS_WITHIN)

    atexit.register(stop)


class _Watchdog:
    def __init__(self, store: Store, stuck_after: float) -> None:
        self.over = threading.Event()
        self._store = store
        self._stuck_after = stuck_after
        self._every = min(_LOOK_EVERY, max(0.05, stuck_after / 5))
        self._looked_at = 0.0
        self._turn = 0
        self._rounds = 0
        self._moved_at = 0.0
        self._debugged_at = 0.0
        self._seen: dict[int, tuple[int, float]] = {}  # by rank: its latest turn, and when it came

    def count_seconds(self) -> None:
        """Keep the clock, without the store: its host may be stopped, or out of reach."""
        while True:
            time.sleep(self._every)
            waiting.clock += self._every
            own, limit = waiting.oldest(), world.current().timeout
            later = world.local_rank() * self._every  # one speaks, without asking the store: the first that can
            if own and not waiting.left_at and waiting.clock - max(own.since, self._looked_at) > limit + later:
                _say(f"dp2ddp: no other rank can be reached since {limit:.0f} s{_text([_state(0)], world.rank())}\n")
                _leave_at_once()

    def watch(self) -> None:
        """Look, tell and judge."""
        alarms = 0
        before: list[State] = []
        with suppress(RuntimeError):  # the store's host is gone: then what is waited for fails by itself, or in time
            while not self.over.wait(self._every):
                own = waiting.oldest()
                if own and not waiting.left_at and waiting.clock - own.since >= min(_PATIENCE, self._stuck_after):
                    self._store.add("alarms", 1)
                last, alarms = alarms, counted(self._store, "alarms")
                if alarms > last:
                    self._turn += 1
                    tell(self._store, f"state{world.rank()}", _state(self._turn))
                    if counted(self._store, "ended"):
                        _leave_at_once()
                    before = self._judge(before) if self._is_lowest() else []
                self._looked_at = waiting.clock

    def _is_lowest(self) -> bool:
        """Whether no rank below this one can speak."""
        return not any(self._heard(rank) for rank in range(world.rank()))

    def _heard(self, rank: int) -> State:
        """What a rank told last; None if that is long ago."""
        if not counted(self._store, f"state{rank}/told"):
            return None
        state: dict[str, Any] = json.loads(self._store.get(f"state{rank}"))
        turn, when = self._seen.get(rank, (0, 0.0))
        if state["turn"] != turn:
            turn, when = self._seen[rank] = state["turn"], waiting.clock
        return state if waiting.clock - when < _SILENT_AFTER * self._every else None

    def _judge(self, before: list[State]) -> list[State]:
        """Say where the ranks are, or end them. Returns their states, for the next time."""
        now = [self._heard(rank) for rank in range(world.world_size())]
        told = [state for state in now if state]
        limit = world.current().timeout
        if any(state["debugs"] for state in told):
            self._debugged_at = waiting.clock
            return []
        for state in told:  # a debugger takes its time, and what is told may be older than its end
            state["for"] = min(state["for"], waiting.clock - self._debugged_at)
        waits = [state["for"] for state in told if state["waits"] and not state["left"]]
        if not _cannot_move(before, now):
            self._moved_at = waiting.clock
        elif waiting.clock - self._moved_at >= _SETTLED_AFTER:
            self._end("the ranks wait for each other in different places", now)
        if waits and min(state["for"] for state in told if not state["left"]) > limit:
            self._end(f"nothing has moved for {limit:.0f} s", now)
        self._rounds = self._rounds + 1 if before else 0  # not all ranks have heard of an alarm at once
        known = all(now) or self._rounds > _SILENT_AFTER
        if waits and max(waits) > self._stuck_after and known and not _wait_apart(now) and self._is_new(now):
            end = f"The job goes on when they do, and ends if nothing moves for {limit:.0f} s."
            _say(f"dp2ddp: a rank has waited for the others for {max(waits):.0f} s{_text(now)}\n{end}\n")
        return now

    def _is_new(self, states: list[State]) -> bool:
        """Whether nothing was said yet of where the others are, nor of this wait while they were elsewhere."""
        culprits = sorted({state["line"] if state else "" for state in states if not state or not state["waits"]})
        _, rank, passed = max((s["for"], rank, s["passed"]) for rank, s in enumerate(states) if s and s["waits"])
        keys = f"stuck {culprits}", f"stuck {rank}/{passed}"
        return not any(counted(self._store, key) for key in keys) and all(failure.may_speak(key) for key in keys)

    def _end(self, why: str, states: list[State]) -> NoReturn:
        if failure.may_speak(failure.FAILED):
            left = any(state and state["left"] for state in states)
            advice = f"\n{waiting.ADVICE}." if left or all(state and state["waits"] for state in states) else ""
            _say(f"dp2ddp: {why}{_text(states)}{advice}\n")
        with suppress(RuntimeError):
            self._store.add("ended", 1)
        _leave_at_once()


def _state(turn: int) -> dict[str, Any]:
    """Where this rank is."""
    own, lines = waiting.oldest(), all_threads()
    main = lines.get(threading.main_thread().ident or 0, [])
    place = located(lines.get(own.thread, [])) if own else located(main)
    line = place.line or located(main).line or "an unknown line"
    since = own.since if own else waiting.passed_at
    debugs = any(_is_debugger(line.filename) for line in main)
    if debugs:
        waiting.passed_at = waiting.clock
    return {
        "turn": turn,
        "line": waiting.left_at or line,
        "left": bool(waiting.left_at),
        "waits": own.what if own else "",
        "does": "" if own else _source(main),
        "for": waiting.clock - since,
        "passed": waiting.passed,
        "polls": own.polls if own else 0,
        "stands": own is not None and own.event is None and not own.polls,
        "debugs": debugs,
    }


def _is_debugger(filename: str) -> bool:
    return filename == bdb.__file__ or "pydevd" in Path(filename).stem


def _source(main: list[Line]) -> str:
    """The text of the script's line."""
    script = located(main).line
    for line in main:
        if f"{os.path.basename(line.filename)}:{line.number}" == script:
            return linecache.getline(*line).strip()
    return ""


def _cannot_move(before: list[State], now: list[State]) -> bool:
    """Whether all have gone on waiting since the last look, and not for the same."""
    if not before or not all(before) or not all(now):
        return False
    pairs = [(one, other) for one, other in zip(before, now) if one and other]
    still = all(one["passed"] == other["passed"] and one["turn"] < other["turn"] for one, other in pairs)
    asked = all(one["polls"] < other["polls"] or not other["polls"] for one, other in pairs)  # once more, in vain
    return still and asked and _wait_apart(now)


def _wait_apart(states: list[State]) -> bool:
    """Whether all wait, and not for the same."""
    return all(state and state["waits"] for state in states) and len({s["waits"] for s in states if s}) > 1


def _text(states: list[State], first: int = 0) -> str:
    """A line for each rank."""
    lines = [":"]
    for rank, state in enumerate(states, first):
        if state is None:
            lines.append(f"  rank {rank} doesn't answer: it is stopped, out of reach, or hasn't come to ddp.setup()")
        elif state["left"]:
            lines.append(f"  rank {rank} has left the script at {state['line']}")
        else:
            what = f"waits for {state['waits']}" if state["waits"] else f"is at work: {state['does']}"
            lines.append(f"  rank {rank} at {state['line']} for {state['for']:.0f} s: {what}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, end="", file=sys.__stderr__, flush=True)


def _leave_at_once() -> NoReturn:
    flush = threading.Thread(target=sys.stdout.flush, daemon=True)  # may wait for ever, as the main thread does
    flush.start()
    flush.join(1.0)
    os._exit(1)


class Line(NamedTuple):
    """A line that is run, or has called what is."""

    filename: str
    number: int


def all_threads() -> dict[int, list[Line]]:
    """The lines that led each thread to where it is, from the innermost one, by the threads' ident.

    Not their frames: who holds these keeps variables, and files open that they are. Of a hundred threads at most, and
    a hundred lines of each: `faulthandler`, which lets no thread run meanwhile.
    """
    found: dict[int, list[Line]] = {}
    own: list[Line] = []
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file.fileno())
        file.seek(0)
        for text in file.read().decode("ascii").splitlines():
            if thread := _THREAD.match(text):
                own = found.setdefault(int(thread[1], 16), [])
            elif line := _LINE.match(text):
                own.append(Line(_ESCAPED.sub(lambda code: chr(int(code[0][2:], 16)), line[1]), int(line[2])))
    return found
