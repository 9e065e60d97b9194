"""Files: whichever rank is late, errors, handles, commands and what is called back are what one process has.

What scripts read, list, write and remove is in `benchmarks/schedules/scripts`, which `tests/benchmarks` runs.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import posix
import shutil
import subprocess
import sys
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from tempfile import NamedTemporaryFile, mkstemp
from typing import Any, Callable

import dp2ddp_runtime as ddp
import numpy as np
import pytest
from dp2ddp_runtime.world import world

_LATE = 0.03  # seconds

Late = Callable[[], None]


def failing(late: Late) -> Any:
    """Rank 0's error is every rank's, and the same handler catches it."""
    seen = []
    for make in (
        lambda: open("none"),  # noqa: SIM115
        lambda: os.mkdir("no/folder"),
        lambda: os.remove("none"),
        lambda: ddp.save({}, "no/folder/net.pt"),
    ):
        late()
        try:
            make()
        except OSError as error:
            seen.append((type(error).__name__, getattr(error, "errno", None), getattr(error, "filename", None)))
        except RuntimeError as error:
            seen.append(("RuntimeError", str(error).replace(os.getcwd(), "").rpartition(": ")[2]))
    late()
    os.mkdir("a")
    late()
    try:
        os.mkdir("a")
    except FileExistsError:
        seen.append(("there",))
    return seen


def handles(late: Late) -> Any:
    """What is done with a handle works, whoever has the file."""
    with open("log.csv", "w", newline="") as file:
        file.write("epoch,loss\n")
        place = file.tell()
        file.flush()
        os.fsync(file.fileno())
        names = file.name, file.mode, file.closed
    late()
    with open("both", "w+b") as file:
        np.save(file, np.arange(4))
        file.seek(0)
        back = np.load(file).tolist()
    late()
    with open("both", "r+b") as file:
        file.seek(0)
        start = file.read(6)
    gc.disable()
    json.dump({"a": 1}, open("a.json", "w"))  # noqa: SIM115 - closed by its last reference, as scripts do
    gc.enable()
    late()
    return place, names, back, start, Path("log.csv").read_text()


def commands(late: Late) -> Any:
    """What is run is run once; what is read of it (`cat`), on every rank."""
    codes: list[Any] = [os.system("echo a >> lines; exit 3"), subprocess.call("echo b >> lines", shell=True)]
    late()
    told = subprocess.check_output(["cat", "lines"])
    late()
    done = subprocess.run("cat lines; exit 4", shell=True, capture_output=True, text=True)
    late()
    started = subprocess.Popen("cat >> lines", shell=True, stdin=subprocess.PIPE)
    started.communicate(b"d\n")
    late()
    error = ""
    try:
        subprocess.run(["false"], check=True)
    except subprocess.CalledProcessError as failed:
        error = str(failed)
    late()
    with os.popen("tail -1 lines") as said:
        codes += [said.read(), said.closed]
    codes.append(os.popen("exit 2").close())
    codes.append(subprocess.Popen(["sh", "-c", "exit 3"]).wait())
    lines = list(os.popen("echo 1; echo 2"))
    with os.popen("cat >> lines", "w") as asked:
        asked.write("f\n")
    late()
    codes.append(Path("lines").read_text())
    return (
        codes,
        lines,
        told,
        done.stdout,
        done.returncode,
        started.returncode,
        error,
        ddp.main_only(len)("abc") and "done",
    )


def looks(late: Late) -> Any:
    """What a folder holds, what is truncated and what has a mode is rank 0's, at the line that asks."""
    seen: list[Any] = []
    for number in range(4):
        late()
        seen.append(sorted(os.listdir(".")))
        Path(f"{number}").write_text(f"{number}")
        os.chmod(f"{number}", 0o640 if ddp.is_main() else 0o600)
        late()
        kept = os.open("kept", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        assert os.fstat(kept).st_nlink == 1  # filelock takes a file without a name for deleted, and tries for ever
        os.write(kept, b"%d" % number)
        os.close(kept)
        late()
        kept = os.open("kept", os.O_RDONLY)
        late()
        seen += [os.read(kept, 9), oct(os.stat(f"{number}").st_mode)]
        os.close(kept)
        os.close(os.open("kept", os.O_WRONLY | os.O_TRUNC))
        with NamedTemporaryFile("w", dir=".", suffix=".part", delete=False) as part:
            part.write("whole")
        late()
        descriptor, own = mkstemp(dir=".")
        os.close(descriptor)
        late()
        os.replace(part.name, "whole")
        os.replace(own, "empty")
        seen += [Path("whole").read_text(), os.path.exists(own)]
    return seen


def linked(late: Late) -> Any:
    """One file under several names: folders that are links, made before and meanwhile, and hard links."""
    seen: list[Any] = []
    os.makedirs("runs/1")
    os.makedirs("runs/2")
    for number in (1, 2):
        late()
        os.symlink(f"runs/{number}", "new")
        os.replace("new", "latest")
        Path("latest/log").write_text(f"{number}")
        late()
        seen += [Path(f"runs/{number}/log").read_text(), Path("latest/log").read_text(), os.listdir("latest")]
        Path(f"runs/{number}/best").write_text("best")
        seen += [os.path.exists("latest/best"), Path("latest/best").read_text()]
        os.remove("latest/best")
        late()
        seen += [os.path.exists(f"runs/{number}/best")]
        os.link("latest/log", f"log{number}")
        late()
        seen += [Path(f"log{number}").read_text()]
    late()
    os.remove("latest")
    os.mkdir("latest")
    Path("latest/log").write_text("its own")
    late()
    return [*seen, Path("latest/log").read_text(), Path("runs/2/log").read_text()]


def rotating(late: Late) -> Any:
    """A log that is rolled over by its size, of which each rank keeps its own count; and one that grows in pieces."""
    handler = RotatingFileHandler("t.log", maxBytes=200, backupCount=9)
    seen: list[Any] = []
    for number in range(8):
        handler.emit(logging.LogRecord("", 20, "", 0, f"{number}" * 60, None, None))
        late()
        with open("grows", "a") as file:
            seen.append(file.tell())
            file.write("row\n" * number)
    handler.close()
    late()
    return [*seen, sorted(os.listdir("."))]


def threads(late: Late) -> Any:
    """TensorBoard's thread appends to a file with the process in its name, to which no other rank comes."""
    late()
    thread = threading.Thread(target=lambda: [Path(f"of {world.rank}").open(mode).close() for mode in "waa"])
    thread.start()
    thread.join()
    ddp.barrier()


def _alone(path: str) -> bool:
    world.store = None
    return os.path.exists(path)


def forked(late: Late) -> Any:
    """What a rank has forked, as a loader's worker, doesn't speak over the rank's connections."""
    os.mkdir("real")
    os.symlink("real", "link")
    late()
    ddp.barrier()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_alone, ("link/file",))


class Store:
    """Of a library in C++, past Python: it writes its file when it is closed."""

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.there = path, posix.access(path, 0)

    def close(self) -> None:
        posix.close(posix.open(self.path, os.O_CREAT, 0o644))


def stores(late: Late) -> Any:
    """What C++ writes until it is closed is read when it is, as HDF5 is."""
    made = ddp.main_only(Store)("x.h5", "w")
    ddp.barrier()  # as there are where a model's outputs are written
    late()
    made.close()
    return [ddp.main_only(Store)("x.h5", mode).there for mode in ("r", "r+")]


def named_by_clocks(late: Late) -> None:
    """Where each rank's clock gives a folder another name, as `SummaryWriter()` does, rank 0's is on the disk."""
    os.makedirs(folder := f"runs/{world.rank}")
    os.makedirs(f"{folder}/old/er")
    shutil.rmtree(f"{folder}/old")
    for number in range(3):
        ddp.barrier()
        late()
        os.mkdir(f"{folder}/{number}")
        with open(f"{folder}/events", "ab") as file:
            file.write(b"0")
        with pytest.raises(FileNotFoundError):
            open(f"{folder}/old/er/events", "ab")  # noqa: SIM115
    ddp.barrier()


SHAPES = [named_by_clocks, stores, failing, handles, commands, looks, linked, rotating, threads, forked]


def _run(shape: Callable[[Late], Any], folder: Path, late_rank: int) -> Any:
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)

    def late() -> None:
        if ddp.world_size() > 1 and late_rank == ddp.rank():
            time.sleep(_LATE)

    return shape(late)


def _content(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".pt", ".zip", ".gz"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("late", [0, 1], ids=["rank 0 is late", "rank 1 is late"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_whichever_rank_is_late(ranks: Any, tmp_path: Path, shape: Any, late: int) -> None:
    wanted = ranks(1, _run, shape, tmp_path / "one", late)
    found = ranks(2, _run, shape, tmp_path / "ranks", late, timeout=60)
    assert found == wanted * 2
    assert _content(tmp_path / "ranks") == _content(tmp_path / "one")


def test_a_rank_that_waits_in_a_message_which_this_one_has_left_has_passed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait there for a third rank's part, and hasn't come to what lies behind that message."""
    told = [
        {"turn": turn, "waits": "the rows", "ahead": False, "met": met, "left": False}
        for turn, met in enumerate([4, 4, 4, 5])
    ]
    disk: Any = sys.modules["dp2ddp_runtime.disk"]
    monkeypatch.setattr(world, "met", 5)
    monkeypatch.setattr(world, "groups", {})
    monkeypatch.setattr(disk, "_LOOKS_FURTHER_AFTER", 0)
    monkeypatch.setattr(disk.store, "published", lambda key: [told.pop(0)])
    seen = disk._Seen(0)
    assert [seen() for _ in range(4)] == [False, False, False, True]
