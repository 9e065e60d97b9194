"""Files and writers: on rank 0 alone, and read by the others when they are there."""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any, Callable, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from dp2ddp_runtime.base import world
from dp2ddp_runtime.rank_zero.callsites import Call
from dp2ddp_runtime.rank_zero.checkpoint import save
from dp2ddp_runtime.rank_zero.journal import Journal
from dp2ddp_runtime.rank_zero.main_only import Absent, main_first, main_only
from dp2ddp_runtime.ranks.file_sync import PeerError
from rank_pool import meet


def write_slowly(path: Path, text: str) -> None:
    time.sleep(0.4)
    path.write_text(text)


def test_a_rank_that_is_far_behind_catches_up() -> None:
    """A data set that asks for each of its files: rank 0 may have asked for all before another rank begins."""
    store, call, count = dist.HashStore(), Call(True, "os.stat here", 1, "os.stat"), 30_000
    rank_0, other = Journal(store), Journal(store)
    for number in range(count):
        rank_0.tell(call, "ok", number, soon=True)
    rank_0.flush()
    begin = time.process_time()
    heard = [other.hear(call) for _ in range(count)]
    assert [entry.value for entry in heard if entry] == [*range(count)]
    assert time.process_time() - begin < 5, "it goes through all that is left for each"


# --- main_only ---


class Store:
    """Like an `h5py.File`: what it writes passes no door."""

    def __init__(self, path: str, mode: str = "r", late: float = 0) -> None:
        self.path, self.mode, self.late = path, mode, late
        self.items: dict[str, Any] = {}
        if mode != "w" and (mode != "a" or in_c.exists(path)):
            self.items = json.loads(in_c.read(path))
        elif mode == "w":
            in_c.write(path, "{}")

    def __getitem__(self, key: str) -> Any:
        return self.items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items[key] = value

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.mode != "r":
            time.sleep(self.late * world.is_main())
            in_c.write(self.path, json.dumps(self.items))


class in_c:  # noqa: N801 - stands for a library
    """Reads and writes without Python's functions, as C++ does."""

    exists = staticmethod(lambda path: ctypes.CDLL(None).access(os.fsencode(path), 0) == 0)

    @staticmethod
    def read(path: str) -> str:
        handle = ctypes.CDLL(None).open(os.fsencode(path), os.O_RDONLY)
        if handle < 0:
            raise FileNotFoundError(path)
        with os.fdopen(handle) as file:
            return file.read()

    @staticmethod
    def write(path: str, text: str) -> None:
        handle = ctypes.CDLL(None).open(os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with os.fdopen(handle, "w") as file:
            file.write(text)


def open_store(path: str, mode: str = "r", late: float = 0) -> Store:
    return Store(path, mode, late)


def _fill_and_read_back(path: str, opener: Any) -> list[Any]:
    """Written, appended to, read; each at once after the last."""
    if world.is_main():
        in_c.write(path, '{"old": 1}')
    found: list[Any] = []
    places = []
    for number, mode in enumerate("waa"):
        with main_only(opener)(path, mode, late=0.3) as store:
            store[str(number)] = number
            found.append([store[key] for key in store.items])
            places.append(store.path)
        found.append(Store(path).items)  # by its path, which is rank 0's
    read = main_only(opener)(path=path, mode="r")
    with pytest.raises(FileNotFoundError):
        main_only(opener)(path + "x", "r+")
    kept = [os.path.exists(place) for place in places]
    del store
    gc.collect()
    return [found, read.items, read.path == path, kept, [os.path.exists(place) for place in places]]


@pytest.mark.parametrize("opener", [Store, open_store])
def test_what_is_filled_and_read_back_is_there_on_every_rank(ranks: Any, tmp_path: Path, opener: Any) -> None:
    path = str(tmp_path / "store")
    for rank, result in enumerate(ranks(2, _fill_and_read_back, path, opener)):
        found, read, is_path, _, left = result
        assert found == [[0], {"0": 0}, [0, 1], {"0": 0, "1": 1}, [0, 1, 2], {"0": 0, "1": 1, "2": 2}]
        assert read == {"0": 0, "1": 1, "2": 2}
        assert is_path
        assert left == [rank == 0] * 3
    assert os.listdir(tmp_path) == ["store"]


class Run:
    """Of a tracker: it gives back what it holds, but makes no file."""

    begun: ClassVar[list[str]] = []

    def __init__(self, name: str | None = None) -> None:
        Run.begun.append(str(name))
        self.values: dict[Any, Any] = {}

    def __getitem__(self, key: str) -> list[Any]:
        return self.values.setdefault(key, [])  # type: ignore[no-any-return]


def _track() -> tuple[list[str], list[bool]]:
    Run.begun.clear()
    runs = [main_only(Run)("first"), main_only(Run)(), main_only(Run)(name="third")]
    for run in runs:
        run["loss"].append(1.0)
    memory: Any = main_only(InMemory)(io.BytesIO())
    memory[np.array([1, 2]), :] = 3
    return Run.begun, [isinstance(run, Run) for run in [*runs]] + [isinstance(memory, InMemory)]


class InMemory:
    def __init__(self, file: io.BytesIO) -> None:
        self.file = file

    def __getitem__(self, key: Any) -> int:
        return 3

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def test_what_makes_no_file_is_rank_0s(ranks: Any) -> None:
    first, second = ranks(2, _track)
    assert first == (["first", "None", "third"], [True] * 4)
    assert second == ([], [False] * 3 + [True])


def _make_log_handler(path: str) -> tuple[str, bool]:
    handler = main_only(logging.FileHandler)(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    name = type(handler).__name__
    handler.close()
    meet()
    return name, os.path.exists(path)


def test_log_handlers(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _make_log_handler, str(tmp_path / "log")) == [("FileHandler", True), ("NullHandler", True)]


def test_absent_takes_everything_and_gives_nothing() -> None:
    run = Absent("wandb")
    with run.init(project="p") as session:
        session.log({"loss": 1}, step=2)
    assert [repr(item) for item in (run, session, run.config["lr"])] == [
        f"<wandb{what}: on rank 0 alone>" for what in ("", ".init(...)", ".config['lr']")
    ]
    run.config.lr = 0.1
    run.config["wd"] = 0.2
    assert (run.config.lr, run.config["wd"], "wd" in run.config, "x" in run.config) == (0.1, 0.2, True, False)
    run[np.arange(3), 1:] = run[[2]] = 1
    assert [0] not in run
    del run[[2]], run.config["wd"]
    assert "wd" not in run.config
    assert (list(run), len(run), bool(run)) == ([], 0, True)
    with pytest.raises(TypeError):
        run.step + 1
    with pytest.raises(TypeError):
        float(run.summary.best)  # type: ignore[arg-type]


def test_what_main_only_leaves(ranks: Any) -> None:
    for thing in (print, functools.partial(print), 3):
        assert main_only(thing) is thing, "alone"
    Run.begun.clear()
    run = main_only(Run)("it may be a rank's that isn't told yet")
    assert [len(Run.begun), *run["loss"], len(Run.begun)] == [0, 1]
    assert ranks(2, main_only, None) == [None, None]


def _name_a_module_early() -> list[str]:
    place = world.current()
    place.ready = False  # as above `setup`
    late = main_only(math)
    early = late.floor(1.5)
    place.ready = True
    return [repr(early), repr(late.floor(2.5)), repr(late.pi)]


def test_a_module_may_be_named_below_its_import(ranks: Any) -> None:
    names = ("floor(...)", "pi")
    assert ranks(2, _name_a_module_early) == [
        ["1", "2", repr(math.pi)],
        ["1", *(f"<math.{name}: on rank 0 alone>" for name in names)],
    ]


# --- main_first ---


def _fetch_on_machines_of_two(folder: Path) -> list[Any]:
    """Four ranks as two machines; what each finds, and which of them wrote."""
    os.chdir(folder)
    place = world.current()
    place.local_rank, before = place.rank % 2, place.local_rank
    machine = place.rank // 2
    try:
        with main_first():
            # Only the first of each machine writes, by whatever way; nothing in here waits for another rank.
            with open(f"opened{machine}", "w") as f:
                f.write(f"{place.rank}")
            with open(f"opened{machine}", "r+") as f:
                f.seek(1)
                f.write("+")
                f.seek(0)
                opened = f.read()
            save(place.rank, f"saved{machine}")
            main_only(write_slowly)(Path(f"called{machine}"), f"{place.rank}")
            with main_first():
                found = [opened, torch.load(f"saved{machine}"), Path(f"called{machine}").read_text()]
            if not os.path.exists("fetched"):
                os.mkdir("fetched")
                os.chdir("fetched")
        main_only(Path("after").write_text)(f"{place.rank}")
        return [*found, Path("after").read_text(), os.path.basename(os.getcwd())]
    finally:
        place.local_rank = before


def test_in_main_first_the_first_of_each_machine_writes(ranks: Any, tmp_path: Path) -> None:
    """And where its working directory is then, is everybody's."""
    first, second = ["0+", 0, "0", "0", "fetched"], ["2+", 2, "2", "0", "fetched"]
    assert ranks(4, _fetch_on_machines_of_two, tmp_path) == [first, first, second, second]


def _skip_one(path: Path) -> bool:
    if world.is_main():
        with main_first():
            write_slowly(path, "x")
    return _exists(path)


@main_first()
def _exists(path: Path) -> bool:
    return path.exists()


def test_ranks_may_differ_in_what_they_pass(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _skip_one, tmp_path / "x") == [True, True]


class MirrorError(Exception):
    pass


class MirrorGoneError(OSError):
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


ERRORS: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: FileNotFoundError(2, "gone", "f"), "FileNotFoundError: [Errno 2] gone: 'f'"),
    (lambda: KeyError("k"), "KeyError: 'k'"),
    (lambda: MirrorError("no network"), "Exception: MirrorError: no network"),
    (lambda: MirrorGoneError("no network"), "OSError: MirrorGoneError: no network"),
    (lambda: UnicodeDecodeError("ascii", b"x", 0, 1, "odd"), "ValueError: UnicodeDecodeError: 'ascii' codec can't"),
    (lambda: SystemExit("no data"), "SystemExit: 1"),
    (lambda: SystemExit(3), "SystemExit: 3"),
]


def _fail() -> list[tuple[str, bool, float]]:
    seen = []
    for make, _ in ERRORS:
        begin = time.monotonic()
        try:
            with main_first():
                assert world.is_main(), "the others must not run it"
                raise make()
        except BaseException as error:  # noqa: BLE001 - exits, too
            peers = isinstance(error.__cause__, PeerError)
            seen.append((f"{type(error).__name__}: {error}", peers, time.monotonic() - begin))
    return seen


def test_main_first_fails_everywhere_at_once(ranks: Any) -> None:
    first, second = ranks(2, _fail)
    assert [text for text, _, _ in first] == [f"{type(error).__name__}: {error}" for error in (m() for m, _ in ERRORS)]
    for (text, peers, seconds), (_, wanted) in zip(second, ERRORS):
        assert text.startswith(wanted)
        assert peers
        assert seconds < 5
