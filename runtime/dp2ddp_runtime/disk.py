"""The disk, as rank 0's was when it stood where this rank stands now.

Rank 0 changes files, and tells, once a path, what was there before; other ranks change nothing and remember what they
have passed. So a rank's answer about a path is what it has passed itself, else what was there before rank 0 changed it,
else the disk's. All that is known holds until the next message of the ranks: there all have come to the same line.

- Nothing waits for an answer. What is read waits for those changes of it that this rank has passed.
- What destroys waits, on rank 0, until the others have come to it: they may still read what is there. Before the first
  wrap rank 0 is alone, and keeps open what it destroys.
- A wait ends when the other rank is seen in a message: it has passed all that lies before.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Callable, NamedTuple

from . import codec, place, told
from .world import PeerError, waiting, world

_stat, _lstat, _open = os.stat, os.lstat, os.open  # the real ones
_FIRST_PAUSE, _LAST_PAUSE = 0.0002, 0.01  # seconds between two looks
_LOOKS_FURTHER_AFTER = 0.5  # seconds
_KEPT = 64  # files
_COPIED = 64 << 20  # bytes of a file that is written over
#: Changes of which nobody knows which files they are about (`main_only`): of everything.
EVERYTHING = os.path.abspath(os.sep)


class Found(NamedTuple):
    """What is known of a path.

    How: "passed", with the kind of what this rank has made there ("file", "dir", or "tree", of which more isn't known),
    or None; "was", with what rank 0 has told (`_described`), or None; "disk": nothing, so the disk says.
    """

    how: str
    value: Any = None

    @property
    def is_absent(self) -> bool:
        return self.how != "disk" and self.value is None


class Log:
    """What a rank tells between two messages. Its keys in the store are used again after the next one.

    Nobody needs what was told before: who has got all of a message has let the others do all that lies before it.
    """

    def __init__(self, name: str) -> None:
        self._name, self._count, self._number = name, -1, 0

    def _key(self) -> str:
        if self._count != world.count:
            self._count, self._number = world.count, 0
        return f"{self._name}/{self._number}"

    def write(self, entry: list[Any]) -> None:
        key = self._key()
        with suppress(RuntimeError):  # at the very end: the store's host may be gone
            told.put(key, codec.encode([self._count, entry]))
        self._number += 1

    def read(self) -> Iterator[Any]:
        """What has come since the last time."""
        while told.has(key := self._key()):
            count, entry = codec.decode(world.store.get(key))
            if count != self._count:
                return
            self._number += 1
            yield entry


class Disk:
    """What a rank knows of the disk. One object, `disk`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_used = False  # whether this process is, or may become, one of several ranks
        self._count = 0  # the message since which the following holds
        self._is_heard = False  # whether there is somebody to hear rank 0
        self._all_told = False  # before the first wrap: whether rank 0 stands in it, and what it has told is here
        self._log = Log("files")
        self._logs: dict[int, Log] = {}
        self._opened: Counter[str] = Counter()  # files that are open for writing
        self._begin()

    def _begin(self) -> None:
        self.programs = 0  # that rank 0 has run: what they do isn't seen, so what is known ends there
        self.passed: dict[str, str | None] = {}
        self._below: defaultdict[str, set[str]] = defaultdict(set)  # by folder: paths that are passed, or told of
        self._was: dict[str, list[tuple[int, Any]]] = {}  # what was there, by programs that had run, as rank 0 tells it
        self._done: Counter[str] = Counter()  # changes of a path that this rank has passed
        self._theirs: Counter[str] = Counter()  # that rank 0 has done
        self._destroyed: Counter[str] = Counter()  # how often this rank has come to what destroys a path
        self._arrived: Counter[tuple[int, str]] = Counter()  # the same of other ranks
        self._raw: set[str] = set()  # opened by `os.open`: nobody sees the end of that
        self._kept: dict[tuple[str, int], str | None] = {}  # what rank 0 has destroyed, by how often before
        self._held: list[int] = []  # descriptors of these

    def _fresh(self) -> None:
        if self._count != world.count:
            for descriptor in self._held:
                os.close(descriptor)
            self._begin()
            self._count = world.count

    # -- what both sides do around a change ------------------------------------------------------------------------

    def begins(self, path: str, destroys: bool, in_place: bool = False) -> None:
        """Ahead of a change. With `destroys`, what is there can be read no more; `in_place`, not by who has it open."""
        with self._lock:
            self._fresh()
            number = self._destroyed[path] = self._destroyed[path] + destroys
            if world.rank:
                return
            known = self._was.setdefault(path, [])
            if not known or known[-1][0] != self.programs:
                known.append((self.programs, _described(path)))
                self._tell("was", path, known[-1])
            if not destroys or not _is_there(path):
                return
            if world.groups is None:
                self._keep(path, number - 1, in_place)
        if world.groups is not None:
            self._let_come(path, number)

    def arrives(self, path: str) -> None:
        """On another rank: it has come to what destroys a path, and is done with what is there."""
        if world.rank and world.groups is not None:
            with self._lock:
                self._own_log().write([path])

    def meets(self, path: str) -> None:
        """Both, where another rank has nothing to look at in between."""
        self.begins(path, destroys=True)
        self.arrives(path)

    def ends(self, path: str, kind: str | None) -> None:
        """Behind a change: what is there now."""
        with self._lock:
            self._fresh()
            if world.rank:
                for each in [p for p in self.passed if p.startswith(path + os.sep)] if kind != "dir" else ():
                    del self.passed[each]
                self.passed[path] = kind
                self._below[os.path.dirname(path)].add(path)
            self.changed(path)

    def changed(self, path: str) -> None:
        """A change of which others may wait for the end."""
        with self._lock:
            self._fresh()
            self._done[path] += 1
            if not world.rank:
                self._tell("done", path, None)

    def opens(self, path: str, raw: bool = False) -> None:
        """A file is open for writing from now on; `closes` ends that, but for a `raw` descriptor."""
        with self._lock:
            self.ends(path, "file")
            if raw:
                self._raw.add(path)
            else:
                self._opened[path] += 1

    def closes(self, path: str) -> None:
        if os.getpid() != world.pid:
            return
        with self._lock:
            self._opened[path] -= 1
            self._opened += Counter()  # without those that are closed
            self._fresh()
            if world.rank and self.passed.get(path, "") is not None:  # it may have been opened ahead of a message
                self.passed[path] = "file"
                self._below[os.path.dirname(path)].add(path)
            self.changed(path)

    def looks(self, path: str) -> None:
        """Ahead of a look at a path: where it is still open for writing, rank 0 tells that it has come here."""
        if self._opened or self._raw:
            with self._lock:
                self._fresh()
                if path in self._opened or path in self._raw:
                    self.changed(path)

    def ran(self) -> int:
        """Rank 0 has run what isn't seen. What others know ends there, when they have heard of it (`heard_of`)."""
        with self._lock:
            self._fresh()
            self.programs += 1
            return self.programs

    def heard_of(self, programs: int, count: int) -> None:
        """What rank 0's `ran` gave, and its number of messages then: it has done all that this rank has passed."""
        with self._lock:
            self._fresh()
            if count == world.count:
                self.programs, self.passed = programs, {}

    # -- rank 0 ------------------------------------------------------------------------------------------------------

    def _tell(self, what: str, path: str, value: Any) -> None:
        if self._is_heard or world.groups is not None:
            self._log.write([what, path, value])

    def hand_over(self) -> None:
        """There is somebody to hear what was recorded so far."""
        self._is_heard = True
        was = [[path, *each] for path, known in self._was.items() for each in known]
        kept = [[path, number, where] for (path, number), where in self._kept.items()]
        told.tell("disk", [was, list(self._done.items()), kept])

    def _keep(self, path: str, number: int, in_place: bool) -> None:
        """What another rank will read, which isn't there yet: as an open file of this process."""
        if not stat.S_ISREG(_stat(path).st_mode if _is_there(path, _stat) else 0):
            return
        where = None
        with suppress(OSError):
            if len(self._held) < _KEPT and _is_there("/proc/self/fd"):
                if not in_place:
                    descriptor = _open(path, os.O_RDONLY)
                elif _stat(path).st_size <= _COPIED:
                    descriptor = _copy(path)
                else:
                    raise OSError(errno.EFBIG, "too large", path)
                self._held.append(descriptor)
                where = f"{socket.gethostname()}:/proc/{os.getpid()}/fd/{descriptor}"
        self._kept[path, number] = where
        self._tell("kept", path, [number, where])

    def _let_come(self, path: str, number: int) -> None:
        for rank in range(1, world.size):

            def has_come(rank: int = rank) -> bool:
                with self._lock:
                    log = self._logs.setdefault(rank, Log(f"files{rank}"))
                    for (each,) in log.read():
                        self._arrived[rank, each] += 1
                    return self._arrived[rank, path] >= number

            wait_or_see(has_come, rank, f"rank {rank} to come to what changes {path}")

    # -- the others --------------------------------------------------------------------------------------------------

    def _own_log(self) -> Log:
        return self._logs.setdefault(world.rank, Log(f"files{world.rank}"))

    def _hear(self) -> None:
        """Take what rank 0 has told by now."""
        with self._lock:
            self._fresh()
            if self._all_told and world.groups is None:
                return
            if world.groups is None:
                stands = _Seen(0)()
                self._hear_recorded()
                self._all_told = stands
            for what, path, value in self._log.read():
                if what == "done":
                    self._theirs[path] += 1
                elif what == "was":
                    self._set_was(path, *value)
                else:
                    self._kept[path, value[0]] = value[1]

    def _hear_recorded(self) -> None:
        recorded = told.told("disk")
        if recorded is not None and not self._was and not self._kept:
            was, done, kept = recorded[0]
            for path, number, value in was:
                self._set_was(path, number, value)
            self._theirs.update(dict(done))
            self._kept.update({(path, number): where for path, number, where in kept})

    def _set_was(self, path: str, number: int, value: Any) -> None:
        self._was.setdefault(path, []).append((number, value))
        self._below[os.path.dirname(path)].add(path)

    def _first_told(self, path: str) -> Any:
        """What was there before rank 0's first change since this rank's place; `...` if it has told of none."""
        return next((was for number, was in self._was.get(path, ()) if number >= self.programs), ...)

    def look(self, path: str, waits: bool = True) -> Found:
        """What is known of a path. Whoever has asked the disk, has to have done so before.

        Args:
            waits: until rank 0 has done those changes of it that this rank has passed, for who reads what is there.
        """
        with self._lock:
            self._fresh()
            chain = [*_chain(path)]
            nearest = next((n for n, each in enumerate(chain) if each in self.passed), len(chain))
            passed = self.passed.get(chain[nearest]) if nearest < len(chain) else ""
        if passed is None:
            return Found("passed")  # removed, or with the folder in which it was
        if waits:
            self.settle(EVERYTHING)
        if nearest < len(chain) and (waits or nearest):
            self.settle(chain[nearest])
        if not nearest:
            return Found("passed", passed)
        self._hear()
        with self._lock:
            for each in chain[:nearest]:
                was = self._first_told(each)
                if was is not ... and (each == path or was is None):
                    return Found("was", was)
        return Found("disk")

    def version(self, path: str) -> str:
        """Where the content of a file lies, as of now, that rank 0 has changed since, before the first wrap.

        Raises:
            RuntimeError: it isn't there any more.
        """
        if world.groups is not None:
            return path
        with self._lock:
            where = self._kept.get((path, self._destroyed[path]), ":" + path)
        machine, _, found = (where or "").partition(":")
        if where is None or (machine and machine != socket.gethostname()):
            raise RuntimeError(
                f"dp2ddp: {path} is read at {place.line()}, and rank 0 has removed or overwritten it since, before the "
                "first wrap: start again (what was made is there now), or keep the file until the model is wrapped"
            )
        return found

    def listing(self, path: str) -> tuple[set[str], set[str]]:
        """Names below a folder that are there, and those that aren't, whatever the disk says. Waits as a read does."""
        for each in [p for p in list(self._below[path]) if self.passed.get(p)]:
            self.settle(each)
        self._hear()
        there: set[str] = set()
        gone: set[str] = set()
        with self._lock:
            for each in self._below[path]:
                is_there = self.passed[each] is not None if each in self.passed else self._first_told(each)
                if is_there is not ...:
                    (there if is_there else gone).add(os.path.basename(each))
        return there, gone

    def settle(self, path: str) -> None:
        """Wait until rank 0 has done as many changes of a path as this rank has passed."""

        def is_done() -> bool:
            if self._theirs[path] < self._done[path]:
                self._hear()
            return self._theirs[path] >= self._done[path]

        if not is_done():
            wait_or_see(is_done, 0, f"rank 0's change of {path}")
            self._theirs[path] = max(self._theirs[path], self._done[path])  # it doesn't come to it


disk = Disk()


class _Seen:
    """Whether a rank was seen to wait in a message, or to have left, since this was made: all before that is done."""

    def __init__(self, rank: int) -> None:
        self._rank, self._turn, self._next = rank, -1, time.monotonic() + _LOOKS_FURTHER_AFTER

    def __call__(self) -> bool:
        if world.groups is None:
            return self._rank == 0 and told.has("folder")  # it stands in the first wrap
        if world.links is not None and world.links.has_sent(self._rank):
            return True
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _LOOKS_FURTHER_AFTER
        return self._tells()

    def _tells(self) -> bool:
        """As `hangs` has it, of ranks on other machines, and of other collectives."""
        if not told.has(f"state{self._rank}"):
            return False
        state = codec.decode(world.store.get(f"state{self._rank}"))
        before, self._turn = self._turn, state["turn"]
        if state["left"]:
            return True
        waits = state["waits"] and not (self._rank == 0 and state["waits"].startswith("rank "))
        return bool(waits and 0 <= before < self._turn)


def wait_or_see(done: Callable[[], bool], rank: int, what: str) -> bool:
    """Wait until it is done, or that rank is seen to have passed it. Whether it is done.

    Raises:
        PeerError: the ranks' store is gone.
    """
    count, pause, seen = world.count, _FIRST_PAUSE, _Seen(rank)
    is_main = threading.current_thread() is threading.main_thread()
    tells: AbstractContextManager[None] = waiting(what) if is_main else nullcontext()
    try:
        if done():
            return True
        with tells:
            while world.count == count and not seen():
                time.sleep(pause)
                pause = min(pause * 1.3, _LAST_PAUSE)
                if done():
                    return True
        return done()  # what was told just before it was seen
    except RuntimeError as error:
        raise PeerError(f"rank 0 has ended, and rank {world.rank} waited for {what} at {place.line()}") from error


def _chain(path: str) -> Iterator[str]:
    """A path, and the folders in which it is, from within."""
    yield path
    while (up := os.path.dirname(path)) != path:
        yield up
        path = up


def _is_there(path: str, ask: Callable[[str], Any] = _lstat) -> bool:
    try:
        ask(path)
    except (OSError, ValueError):
        return False
    return True


def _described(path: str) -> Any:
    """What `os.lstat` and `os.stat` give, as plain values; None if nothing is there."""
    try:
        link = _lstat(path)
    except (OSError, ValueError):
        return None
    target: os.stat_result | None = link
    if stat.S_ISLNK(link.st_mode):
        target = None
        with suppress(OSError):
            target = _stat(path)
    return [each and each.__reduce__()[1] for each in (link, target)]


def _copy(path: str) -> int:
    """A descriptor of an unlinked copy."""
    with tempfile.TemporaryFile() as copy, os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        shutil.copyfileobj(file, copy)
        copy.flush()
        return os.dup(copy.fileno())
