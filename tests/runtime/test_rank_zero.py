"""Files and writers: on rank 0 alone, and read by the others when they are there."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dp2ddp_runtime import main_first, main_only, save
from dp2ddp_runtime.main_only import Absent
from dp2ddp_runtime.world import world
from rank_pool import meet


def write_slowly(path: Path, text: str) -> None:
    time.sleep(0.4)
    path.write_text(text)


# --- main_only ---


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
    return Run.begun, [isinstance(run, Run) for run in [*runs]]


def test_what_makes_no_file_is_rank_0s(ranks: Any) -> None:
    first, second = ranks(2, _track)
    assert first == (["first", "None", "third"], [True] * 3)
    assert second == ([], [False] * 3)


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
    run[np.arange(3), 1:] = run[[2]] = run.config["wd"] = 1
    assert (run.config.lr, "wd" in run.config) == (0.1, False)
    assert (list(run), bool(run)) == ([], True)
    with pytest.raises(TypeError):
        run.config["wd"] + 1
    with pytest.raises(TypeError):
        float(run.summary.best)  # type: ignore[arg-type]


def test_what_main_only_leaves(ranks: Any) -> None:
    for thing in (print, functools.partial(print), 3):
        assert main_only(thing) is thing, "alone"
    assert ranks(2, main_only, None) == [None, None]


# --- main_first ---


def _fetch_on_machines_of_two(folder: Path) -> list[Any]:
    """Four ranks as two machines; what each finds, and which of them wrote."""
    os.chdir(folder)
    place = world
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
    if world.rank == 0:
        with main_first():
            write_slowly(path, "x")
    return _exists(path)


@main_first()
def _exists(path: Path) -> bool:
    return path.exists()


def test_ranks_may_differ_in_what_they_pass(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _skip_one, tmp_path / "x") == [True, True]


def _fail() -> str:
    try:
        with main_first():
            assert world.rank == 0, "the others must not run it"
            raise KeyError("no network")
    except (KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def test_main_first_fails_everywhere(ranks: Any) -> None:
    wanted = ["KeyError: 'no network'", "RuntimeError: KeyError: 'no network' (rank 0 failed in main_first())"]
    assert ranks(2, _fail) == wanted
