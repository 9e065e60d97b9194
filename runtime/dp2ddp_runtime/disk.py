"""The disk, as it was when rank 0 stood at this line.

Rank 0 changes files, and tells, once a path, what was there before; other ranks change nothing and remember what they
have passed. So a rank's answer about a path is what it has passed itself, else what was there before rank 0 changed it,
else the disk's. All that is known holds until the next message of the ranks: there all have come to the same line.

- Nothing waits for an answer. What is read waits for those changes of it that this rank has passed.
- What destroys waits, on rank 0, until the others have come to it: they may still read what is there. Before the first
  wrap rank 0 is alone, and copies small files that it destroys.
- A wait ends when the other rank is seen in a message: it has passed all that lies before.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Callable, NamedTuple

from . import codec, place, store
from .acting import acting
from .world import PeerError, waiting, world

_stat, _lstat = os.stat, os.lstat  # the real ones
_FIRST_PAUSE, _LAST_PAUSE = 0.0002, 0.01  # seconds between two looks
_LOOKS_FURTHER_AFTER = 0.5  # seconds
_COPIED = 64 << 20  # bytes of all files that rank 0 destroys before the first wrap
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
    """What a rank tells between two messages. Its keys in the store are used again after the next but one.

    Nobody needs what was told before: who has got all of a message has let the others do all that lies before it.
    """

    def __init__(self, name: str) -> None:
        self._name, self._count, self._number = name, -1, 0

    def _key(self) -> str:
        if self._count != world.count:
            self._count, self._number = world.count, 0
        return f"{self._name}/{self._count % 2}/{self._number}"  # a thread may write in the next one

    def write(self, entry: list[Any]) -> None:
        key = self._key()
        with suppress(RuntimeError):  # at the very end: the store's host may be gone
            store.put(key, codec.encode([self._count, entry]))
        self._number += 1

    def read(self) -> Iterator[Any]:
        """What has come since the last time."""
        while store.has(key := self._key()):
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
        self._all_told = False  # whether rank 0 stands in the first wrap, and what it has told is here
        self._log = Log("files")
        self._logs: dict[int, Log] = {}
        self._opened: Counter[str] = Counter()  # files that are open for writing
        self._raw: set[str] = set()  # opened by `os.open`, or past Python: nobody sees the end of that
        self.made: set[str] = set()  # another rank's folders: on no disk, where its own clock has named them
        self._begin()

    def _begin(self) -> None:
        self.programs = 0  # that rank 0 has run: what they do isn't seen, so what is known ends there
        self.passed: dict[str, str | None] = {}
        self.links: dict[str, str] = {}  # where symbolic links lead that this rank has passed
        self._below: defaultdict[str, set[str]] = defaultdict(set)  # by folder: paths that are passed, or told of
        self._was: dict[str, list[tuple[int, Any]]] = {}  # what was there, by programs that had run, as rank 0 tells it
        self._done: Counter[str] = Counter()  # changes of a path that this rank has passed
        self._theirs: Counter[str] = Counter()  # that rank 0 has done
        self._destroyed: Counter[str] = Counter()  # how often this rank has come to what destroys a path
        self._arrived: Counter[tuple[int, str]] = Counter()  # the same of other ranks
        self._copied: dict[tuple[str, int], str] = {}  # copies of what rank 0 has destroyed, by how often before
        self._room = _COPIED
        self._clear: Any = None  # removes the copies

    @contextmanager
    def _now(self) -> Iterator[None]:
        """Around what asks or changes what is known, which ends with each message."""
        with self._lock:
            if self._count != world.count:
                if self._clear:
                    self._clear()
                self._begin()
                self._count = world.count
            yield

    # -- what both sides do around a change ------------------------------------------------------------------------

    def begins(self, path: str, destroys: bool) -> None:
        """Ahead of a change. With `destroys`, what is there can be read no more."""
        with self._now():
            number = self._destroyed[path] = self._destroyed[path] + destroys
            if world.rank:
                return
            known, now = self._was.setdefault(path, []), _described(path)
            if not known or known[-1][0] != self.programs:
                known.append((self.programs, now))
                self._tell("was", path, known[-1])
            if not destroys or now is None:
                return
            if world.groups is None:
                self._keep(path, number - 1)
                return
        self._let_come(path, number)

    def arrives(self, path: str) -> None:
        """On another rank: it has come to what destroys a path, and is done with what is there."""
        if world.rank and world.groups is not None:
            with self._lock:
                self._log_of(world.rank).write([path])

    def meets(self, path: str) -> None:
        """Both, where another rank has nothing to look at in between."""
        self.begins(path, destroys=True)
        self.arrives(path)

    def ends(self, path: str, kind: str | None) -> None:
        """Behind a change: what is there now; "same" is what was there."""
        with self._now():
            if world.rank and kind != "same":
                for each in [p for p in self.passed if p.startswith(path + os.sep)] if kind != "dir" else ():
                    del self.passed[each]
                self.passed[path] = kind
                self.made = {each for each in self.made if path not in chain(each)}
                self.made |= {path} if kind == "dir" else set()
                self._below[os.path.dirname(path)].add(path)
            self.changed(path)

    def changed(self, path: str) -> None:
        """A change of which others may wait for the end."""
        with self._now():
            self._done[path] += 1
            if not world.rank:
                self._tell("done", path, 1)

    def opens(self, path: str, raw: bool = False) -> None:
        """A file is open for writing from now on; `closes` ends that, but for a `raw` descriptor."""
        with self._lock:
            if raw:
                self._raw.add(path)
            else:
                self._opened[path] += 1

    def closes(self, path: str) -> None:
        if os.getpid() != world.pid:
            return
        with self._now():
            self._opened[path] -= 1
            self._opened += Counter()  # without those that are closed
            is_gone = self.passed.get(path, "") is None
            self.ends(path, "same" if is_gone else "file")  # it may have been opened ahead of a message

    def looks(self, path: str) -> None:
        """Ahead of a look at a path: where it is still open for writing, rank 0 tells that it has come here."""
        if (self._opened or self._raw) and os.getpid() == world.pid:  # a fork may have a locked lock
            with self._now():
                if path in self._opened or path in self._raw:
                    self.changed(path)

    def ran(self) -> int:
        """Rank 0 has run what isn't seen. What others know ends there, when they have heard of it (`heard_of`)."""
        with self._now():
            self.programs += 1
            return self.programs

    def heard_of(self, programs: int, count: int) -> None:
        """What rank 0's `ran` gave, and its number of messages then: it has done all that this rank has passed."""
        with self._now():
            if count == world.count:
                self.programs, self.passed = programs, {}

    # -- rank 0 ------------------------------------------------------------------------------------------------------

    def _tell(self, what: str, path: str, value: Any) -> None:
        if self._is_heard or world.groups is not None:
            self._log.write([[what, path, value]])

    def hand_over(self) -> None:
        """There is somebody to hear what was recorded so far."""
        self._is_heard = True
        was = [["was", path, each] for path, known in self._was.items() for each in known]
        kept = [["kept", path, [number, where]] for (path, number), where in self._copied.items()]
        self._log.write([*was, *(["done", path, number] for path, number in self._done.items()), *kept])

    def _keep(self, path: str, number: int) -> None:
        """What another rank will read, which isn't there yet: a copy of it, as long as there is room for it."""
        with acting("own"):
            if not os.path.isfile(path):
                return
        if self._clear is None:
            self._copies = tempfile.mkdtemp(prefix="dp2ddp-")
            self._clear = weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        copy = os.path.join(self._copies, f"{len(self._copied)}")
        with acting("own"), suppress(OSError):
            if os.path.getsize(path) <= self._room:
                self._room -= os.path.getsize(path)
                shutil.copyfile(path, copy + "~")
                os.replace(copy + "~", copy)
        self._copied[path, number] = copy
        self._tell("kept", path, [number, copy])

    def _log_of(self, rank: int) -> Log:
        return self._logs.setdefault(rank, Log(f"files{rank}"))

    def _let_come(self, path: str, number: int) -> None:
        for rank in range(1, world.size):

            def has_come(rank: int = rank) -> bool:
                with self._lock:
                    for (each,) in self._log_of(rank).read():
                        self._arrived[rank, each] += 1
                    return self._arrived[rank, path] >= number

            wait_or_see(has_come, rank, f"rank {rank} to come to what changes {path}")

    # -- the others --------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Take what rank 0 has told by now."""
        with self._now():
            if self._all_told and world.groups is None:
                return
            self._all_told = world.groups is None and store.has("folder")  # asked ahead of what follows
            for what, path, value in [each for entry in self._log.read() for each in entry]:
                if what == "done":
                    self._theirs[path] += value
                elif what == "kept":
                    self._copied[path, value[0]] = value[1]
                else:
                    self._was.setdefault(path, []).append(value)
                    self._below[os.path.dirname(path)].add(path)

    def _first_told(self, path: str) -> Any:
        """What was there before rank 0's first change since this rank's place; `...` if it has told of none."""
        return next((was for number, was in self._was.get(path, ()) if number >= self.programs), ...)

    def look(self, path: str, waits: bool = True) -> Found:
        """What is known of a path. Whoever has asked the disk, has to have done so before.

        Args:
            waits: until rank 0 has done those changes of it that this rank has passed, for who reads what is there.
        """
        with self._now():
            nearest = next((each for each in chain(path) if each in self.passed), "")
            passed = self.passed.get(nearest, "")
        if passed is None:
            return Found("passed")  # removed, or with the folder in which it was
        if waits:
            self.wait_for_changes(path)
        if nearest not in ("", path):
            self.wait_for_changes(nearest)
        if nearest == path:
            return Found("passed", passed)
        self._hear()
        with self._lock:
            for each in itertools.takewhile(lambda each: each != nearest, chain(path)):
                was = self._first_told(each)
                if was is not ... and (each == path or was is None):
                    return Found("was", was)
        return Found("disk")

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads, as rank 0's did at this line; None if none was there. Doesn't wait."""
        target = _target(path)
        if not world.rank or os.getpid() != world.pid:  # what a rank has forked shares its connections, and uses none
            return target
        with self._now():
            if self.passed.get(path, "tree") != "tree":
                return None
            if path in self.links:
                return self.links[path]
        if target is not None:  # rank 0 may have made it just now
            self._hear()
        with self._lock:
            was = self._first_told(path)
        return target if was is ... else was and was[2]

    def path_of_content(self, path: str, passed: int = 0) -> str:
        """Where the content of a file lies, as it was before the last `passed` changes of this rank's.

        Raises:
            RuntimeError: it isn't there any more.
        """
        kept = None if world.groups is not None else self._copied.get((path, self._destroyed[path] - passed))
        with acting("own"):
            if kept and not os.path.exists(kept):
                raise RuntimeError(
                    f"dp2ddp: {path} is read at {place.line()}, and rank 0 has removed or overwritten it since, before "
                    "the first wrap: start again (what was made is there now), or keep the file until the model is "
                    "wrapped"
                )
        return kept or path

    def listing(self, path: str) -> tuple[set[str], set[str]]:
        """Names below a folder that are there, and those that aren't, whatever the disk says. Waits as a read does."""
        for each in [p for p in list(self._below[path]) if self.passed.get(p)]:
            self.wait_for_changes(each)
        self._hear()
        there: set[str] = set()
        gone: set[str] = set()
        with self._lock:
            for each in self._below[path]:
                is_there = self.passed[each] is not None if each in self.passed else self._first_told(each)
                if is_there is not ...:
                    (there if is_there else gone).add(os.path.basename(each))
        return there, gone

    def wait_for_changes(self, path: str) -> None:
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
        self._met = world.met

    def __call__(self) -> bool:
        if world.groups is None:
            return self._rank == 0 and store.has("folder")  # it stands in the first wrap
        if world.links is not None and world.links.has_sent(self._rank):
            return True
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _LOOKS_FURTHER_AFTER
        # As `hangs` has it, of ranks on other machines, and of other collectives.
        for state in store.published(f"state{self._rank}") or ():
            before, self._turn = self._turn, state["turn"]
            # It may still be in a message that this rank has left: another rank's part is on its way to it.
            waits = state["waits"] and state["met"] >= self._met
            waits = waits and not state["ahead"]
            return bool(state["left"] or (waits and 0 <= before < self._turn))
        return False


def wait_or_see(done: Callable[[], bool], rank: int, what: str) -> bool:
    """Wait until it is done, or that rank is seen to have passed it. Whether it is done.

    Raises:
        PeerError: the ranks' store is gone.
    """
    count, pause, seen = world.count, _FIRST_PAUSE, _Seen(rank)
    is_main = threading.current_thread() is threading.main_thread()
    tells: AbstractContextManager[None] = waiting(what, ahead=world.rank == 0) if is_main else nullcontext()
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


@contextmanager
def changing(kinds: Mapping[str, str | None]) -> Iterator[None]:
    """Around a change of paths: rank 0 makes it, and the others look in here whether they could.

    Args:
        kinds: what is there then: "file", "dir", "tree" (which of them isn't known), None; "same" is what was there.
    """
    for path, kind in kinds.items():
        disk.begins(path, destroys=kind != "same")
    try:
        with acting("own"):
            yield
    finally:
        for path, kind in kinds.items():
            if kind != "same":
                disk.arrives(path)
    for path, kind in kinds.items():
        disk.ends(path, kind)


def chain(path: str) -> Iterator[str]:
    """A path, and the folders in which it is, from within."""
    yield path
    while (up := os.path.dirname(path)) != path:
        yield up
        path = up


def _described(path: str) -> Any:
    """What `os.lstat`, `os.stat` and `os.readlink` give, as plain values; None if nothing is there."""
    try:
        link = _lstat(path)
    except (OSError, ValueError):
        return None
    target: os.stat_result | None = link
    if stat.S_ISLNK(link.st_mode):
        target = None
        with suppress(OSError):
            target = _stat(path)
    return [*(each and each.__reduce__()[1] for each in (link, target)), _target(path)]


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None
