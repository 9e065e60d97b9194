"""Ranks that fail, leave or wait for each other: errors are shown once, hangs are reported.

Each rank has one thread, which looks from time to time. As soon as any rank waits for some seconds, all tell the store
where they are, and the lowest one that can still tell speaks for all.
"""

from __future__ import annotations

import atexit
import faulthandler
import linecache
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from . import codec, place
from .signals import signals
from .store import count, has, put, wait_until
from .world import ADVICE, PeerError, ThreadError, world

#: The seconds after which a rank that waits for another one makes rank 0 tell where all of them are.
STUCK_AFTER = "DP2DDP_STUCK_AFTER"
#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED = {
    "threading.excepthook": "an error in a thread of another rank is told by rank 0",
    "sys.excepthook": "an error is shown once over all ranks, and ends them all",
}
_SIGNAL_BASE = 128  # what a shell adds to the number of the signal that ended a process
_PATIENCE = 1.0  # seconds that a rank waits before the ranks tell each other
_SETTLED_AFTER = 3.0  # seconds; what a rank waits for may have come while a busy machine leaves it no time to see that
_SILENT_AFTER = 4  # looks
_GRACE = 1.0  # seconds in which rank 0 may fail in the same way as another rank, and tell of it itself
_ENDS_WITHIN = 5.0  # seconds for ranks whose rank 0 has failed
_SAYS_WITHIN = 0.3  # seconds in which rank 0 speaks, where all ranks fail alike


class State:
    """What this module knows. One object, `state`.

    Attributes:
        aloud: where standard error led, on a rank that says nothing.
        failed: whether this rank is on its way out because of an error.
    """

    def __init__(self) -> None:
        self.aloud = 2
        self.failed = False
        self.timeout = 1800.0  # seconds in which something has to move
        self.children: list[Any] = []  # the ranks that this process has started (`birth.Child`)
        self.has_parent = False  # whether it is such a rank
        self.over = threading.Event()
        self.thread: threading.Thread | None = None  # the one that looks


state = State()


# ---- a rank that fails -----------------------------------------------------------------------------------------------


def install() -> None:
    """An error that ends this rank is told once, over all ranks, and ends all of them."""
    show, pid = sys.excepthook, os.getpid()

    def hook(kind: Any, error: Any, trace: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if os.getpid() != pid or not (is_main or isinstance(error, ThreadError)):
            show(kind, error, trace)  # of a child, such as a loader's worker
            return
        state.failed = True
        # The interpreter isn't taken down: threads in a collective that never ends would hang or abort that.
        faulthandler.dump_traceback_later(30, exit=True, file=state.aloud)
        if world.rank == 0:
            _fail_as_main(show, kind, error, trace)
        elif _follows(error):
            _let_main_tell(kind, error, trace)
        elif not issubclass(kind, KeyboardInterrupt):
            _fail_aloud(kind, error, trace)
        interrupted = issubclass(kind, KeyboardInterrupt)
        _exit(_SIGNAL_BASE + signal.SIGINT if interrupted else 1)

    sys.excepthook = hook
    show_of_thread = threading.excepthook

    def thread_hook(told: Any) -> None:
        if isinstance(told.exc_value, ThreadError):  # the main thread may wait for this one for ever
            hook(told.exc_type, told.exc_value, told.exc_traceback)
            return
        if world.rank == 0 or os.getpid() != pid:
            show_of_thread(told)
            return
        lines = traceback.format_exception(told.exc_type, told.exc_value, told.exc_traceback)
        text = "".join([f"dp2ddp: an error in a thread of rank {world.rank}:\n", *lines])
        if not state.has_parent or world.store is None:
            say(text)
        else:  # which has no standard error: rank 0 says it
            put(f"said/{count('said', 1)}", text)

    threading.excepthook = thread_hook


#: What gloo, NCCL and torch's store say where the other side is gone.
_OF_PEERS = re.compile(r"(?s)(?=.*(gloo|c10d|Store)).*(closed by peer|Connection reset)")


def _follows(error: BaseException | None) -> bool:
    """Whether an error says only that another rank has ended."""
    while error is not None:
        if isinstance(error, PeerError) or (isinstance(error, RuntimeError) and _OF_PEERS.search(str(error))):
            return True
        error = error.__cause__
    return False


def _let_main_tell(kind: Any, error: Any, trace: Any) -> None:
    """A launcher ends all as soon as one has ended: why has to be said before that, by rank 0 if it knows it."""
    deadline = time.monotonic() + _ENDS_WITHIN
    with suppress(RuntimeError):  # the store's host is gone
        while time.monotonic() < deadline and not count("failed"):
            time.sleep(0.05)
        if not count("failed"):  # it waits for this rank
            _fail_aloud(kind, error, trace)
    time.sleep(_GRACE)


def _fail_as_main(show: Any, kind: Any, error: Any, trace: Any) -> None:
    """Rank 0 tells of its error; not where that is only that another rank has failed, which has told of it."""
    if _follows(error):
        deadline = time.monotonic() + (_ENDS_WITHIN if state.children else _GRACE)
        while time.monotonic() < deadline:
            _end_with_child(at_once=True)
            with suppress(RuntimeError):  # torchrun has ended, and its store
                if not state.children and count("failed"):
                    return
            time.sleep(0.05)
        sys.stderr.write(f"dp2ddp: rank 0 of {world.size} failed, as another rank has ended:\n")
    with suppress(RuntimeError):
        count("failed", 1)
    show(kind, error, trace)


def _fail_aloud(kind: Any, error: Any, trace: Any) -> None:
    """A rank other than 0 tells of its error, unless another one has."""
    time.sleep(_SAYS_WITHIN)
    with suppress(RuntimeError):  # the store's host is gone
        if count("failed", 1) > 1:
            return
    of = f" of {world.size}" * (world.size > world.rank)  # (known from the first wrap on)
    lines = [f"dp2ddp: rank {world.rank}{of} failed:\n", *traceback.format_exception(kind, error, trace)]
    say("".join(lines))


def say(text: str) -> None:
    """Write to where standard error led, at once."""
    with suppress(OSError):
        os.write(state.aloud if world.rank else 2, text.encode(errors="replace"))


def _exit(code: int) -> None:
    """Do what was registered for the exit, and end this process."""
    atexit._run_exitfuncs()
    end(code)


def end(code: int) -> NoReturn:
    """End this process at once, with what was printed so far."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, OSError):
            stream.flush()
    os._exit(code)


def _end_with_child(at_once: bool = False) -> None:
    """On rank 0: where another rank has failed, tell of it, and end with its exit code."""
    for child in state.children:
        code = child.process.poll()
        if not code:
            continue
        if not at_once:
            time.sleep(_GRACE)
        if (state.failed or world.left_at) and not at_once:
            return
        words = child.last_words()
        failed = [each for each in state.children if each.process.poll() and "failed:\n" in each.last_words()]
        if failed:
            child = failed[0]
            words = child.last_words()
            words = words[words.rindex("dp2ddp: rank ") :]
        elif code < 0:
            memory = "; is the machine out of memory?" if code == -signal.SIGKILL else ""
            words += f"dp2ddp: rank {child.rank} was ended by signal {-code} ({signal.strsignal(-code)}{memory})\n"
        else:
            words += f"dp2ddp: rank {child.rank} ended with exit code {code}, and rank 0 had not\n"
        with suppress(ValueError, OSError):
            sys.stdout.flush()
        say(words)
        # (In another thread than the main one nothing that was registered for the exit may run.)
        (_exit if at_once else end)(_SIGNAL_BASE - code if code < 0 else code)


# ---- the end ---------------------------------------------------------------------------------------------------------


def leave() -> None:
    """At exit: wait until all ranks have come to their end. A collective, but for a rank that has failed."""
    if not state.failed:
        world.left_at = world.left_at or "its end"
        with suppress(RuntimeError):  # rank 0 is gone already, and its store
            count("left", 1)
            wait_until(_all_have_left, "the others' end")
        deadline = time.monotonic() + _ENDS_WITHIN
        for child in state.children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, deadline - time.monotonic()))
        if any(child.process.poll() and "failed:\n" in child.last_words() for child in state.children):
            _end_with_child(at_once=True)  # the script has caught what rank 0 was told of it
    # The interpreter must not end while a thread is in the store: C++ aborts the process.
    state.over.set()
    if state.thread is not None:
        state.thread.join(_ENDS_WITHIN)
    for child in state.children:  # and what they have started
        if child.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)


def _all_have_left() -> bool:
    gone = sum(child.process.poll() is not None for child in state.children)
    return count("left") >= world.size or (world.rank == 0 and bool(gone) and gone + 1 >= world.size)


# ---- the thread that looks -------------------------------------------------------------------------------------------


def start(size: int) -> None:
    """Look after this rank, one of `size`, from now on. SystemExit if `DP2DDP_STUCK_AFTER` is no number."""
    given = os.environ.get(STUCK_AFTER, "60")
    try:
        stuck_after = max(0.0, float(given))
    except ValueError:
        raise SystemExit(f"dp2ddp: {STUCK_AFTER} must be a number of seconds, not {given!r}") from None
    state.thread = threading.Thread(target=_Watch(stuck_after, size).run, daemon=True, name="dp2ddp")
    state.thread.start()


class _Watch:
    def __init__(self, stuck_after: float, size: int) -> None:
        self._stuck_after, self._size = stuck_after, size
        self._every = min(1.0, max(0.05, stuck_after / 5))
        self._turn = self._said = 0
        self._looked = time.monotonic()
        self._interrupted = math.inf, -1  # not after, and what was passed by then
        self._rounds = 0
        self._moved = (-1, "", 0.0)  # what was passed, what is waited for, since when
        self._seen: dict[int, tuple[int, float]] = {}  # by rank: its latest turn, and when it came
        self._parent = os.getppid()

    def run(self) -> None:
        """Until the end: look, tell and judge."""
        alarms = 0
        with suppress(RuntimeError, OSError):  # the store's host is gone: what is waited for fails by itself
            while not state.over.wait(self._every):
                self._end_if_interrupted()
                if world.rank and state.has_parent and os.getppid() != self._parent:
                    os._exit(1)  # rank 0 is gone
                if world.rank == 0 and not world.left_at:
                    _end_with_child()
                    while state.children and self._said < count("said"):
                        self._said += 1
                        say(world.store.get(f"said/{self._said}").decode())
                own = self._state()
                if own["waits"] and own["for"] >= min(_PATIENCE, self._stuck_after):
                    count("alarms", 1)
                last, alarms = alarms, count("alarms")
                if alarms > last:
                    self._turn += 1
                    put(f"state{world.rank}", codec.encode({**own, "turn": self._turn}))
                    if count("ended"):
                        os._exit(1)
                    self._judge() if not any(map(self._heard, range(world.rank))) else None
                else:
                    self._rounds = 0

    def _end_if_interrupted(self) -> None:
        """Ctrl-C while the main thread waits in C++, where no handler runs, and what it waits for doesn't come."""
        before, self._looked = self._looked, time.monotonic()
        if signal.SIGINT in signals.came():
            self._interrupted = before, world.passed
        since, passed = self._interrupted
        is_long = passed == world.passed and time.monotonic() - since > signals.alone_after + 1
        if world.waits and is_long and signals.noticed.get(signal.SIGINT, 0.0) < since:
            say(f"dp2ddp: interrupted at {world.waits[0][1]}, where rank {world.rank} waited for {world.waits[0][0]}\n")
            end(_SIGNAL_BASE + signal.SIGINT)

    def _state(self) -> dict[str, Any]:
        """Where this rank is."""
        waits = world.waits[:1]
        frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
        line, text, debugs = _where(frame)
        what = waits[0][0] if waits else ""
        debugs = debugs and not what  # a debugger's lines lead to all that is run in it
        if self._moved[:2] != (world.passed, what) or debugs:
            self._moved = world.passed, what, time.monotonic()
        return {
            "line": world.left_at or (waits[0][1] if waits else line) or "an unknown line",
            "left": bool(world.left_at),
            "waits": what,
            "ahead": bool(waits) and waits[0][2],
            "does": "" if waits else text,
            "for": time.monotonic() - self._moved[2],
            "met": world.met,
            "debugs": debugs,
            "raised": world.raised,
        }

    def _heard(self, rank: int) -> Any:
        """What a rank told last; None if that is long ago."""
        if not has(f"state{rank}"):
            return None
        told = codec.decode(world.store.get(f"state{rank}"))
        turn, when = self._seen.get(rank, (0, 0.0))
        if told["turn"] != turn:
            turn, when = self._seen[rank] = told["turn"], time.monotonic()
        return told if time.monotonic() - when < _SILENT_AFTER * self._every + 0.5 else None

    def _judge(self) -> None:
        states = [self._heard(rank) for rank in range(self._size)]
        self._rounds += 1
        if any(each and each["debugs"] for each in states):
            return
        waits = [each["for"] for each in states if each and each["waits"] and not each["left"]]
        still = min((each["for"] for each in states if each and not each["left"]), default=0.0)
        places = {(each["waits"], each["left"]) for each in states if each}
        if all(states) and len(places) > 1 and all(what for what, _ in places) and still >= _SETTLED_AFTER:
            self._end("the ranks wait for each other in different places", states)
        if waits and still > state.timeout:
            self._end(f"nothing has moved for {state.timeout:.0f} s", states)
        known = all(states) or self._rounds > _SILENT_AFTER
        culprits = sorted({each["line"] if each else "" for each in states if not each or not each["waits"]})
        is_stuck = waits and max(waits) > self._stuck_after and known
        if is_stuck and count(f"stuck {culprits}", 1) == 1:  # nothing was said yet of where these are
            end = f"The job goes on when they do, and ends if nothing moves for {state.timeout:.0f} s."
            say(f"dp2ddp: a rank has waited for the others for {max(waits):.0f} s{_text(states)}\n{end}\n")

    def _end(self, why: str, states: Sequence[Any]) -> None:
        if count("failed", 1) == 1:
            say(f"dp2ddp: {why}{_text(states)}\n{ADVICE}.\n")
        count("ended", 1)
        flush = threading.Thread(target=sys.stdout.flush, daemon=True)  # may wait for ever, as the main thread does
        flush.start()
        flush.join(1.0)
        os._exit(1)


def _where(frame: FrameType | None) -> tuple[str, str, bool]:
    """The script's line, its text, and whether a debugger is at work."""
    line, text, debugs = place.line(frame) if frame else "", "", False
    while frame is not None:
        name = os.path.basename(frame.f_code.co_filename)
        debugs = debugs or name == "bdb.py" or "pydevd" in name
        if f"{name}:{frame.f_lineno}" == line and not text:
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0).strip()
        frame = frame.f_back
    return line, text, debugs


def _text(states: Sequence[Any]) -> str:
    """A line for each rank."""
    lines = [":"]
    for rank, each in enumerate(states):
        if each is None:
            lines.append(f"  rank {rank} doesn't answer: it is stopped, out of reach, or hasn't come to the first wrap")
        elif each["left"]:
            lines.append(f"  rank {rank} has left the script{each['raised']}")
        else:
            what = f"waits for {each['waits']}" if each["waits"] else f"is at work: {each['does']}"
            lines.append(f"  rank {rank} at {each['line']} for {each['for']:.0f} s: {what}")
    return "\n".join(lines)
