"""Files and writers: on rank 0 alone, and read by the others when they are there."""

from __future__ import annotations

import functools
import gc
import io
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, ClassVar

import numpy as np
import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.rank_zero import main_only as rank_zero
from dp2ddp_runtime.rank_zero.checkpoint import save
from dp2ddp_runtime.rank_zero.main_only import Absent, main_first, main_only
from dp2ddp_runtime.ranks import file_sync
from dp2ddp_runtime.ranks.file_sync import PeerError
from rank_pool import meet


def write_slowly(path: Path, text: str) -> None:
    time.sleep(0.4)
    path.write_text(text)


# --- open ---


def _write_then_read(folder: Path) -> list[str]:
    seen = []
    for n in range(3):
        with rank_zero.open(folder / "a.txt", "w") as f:
            if world.is_main():
                time.sleep(0.2)
            f.write(f"round {n}")
        with rank_zero.open(folder / "a.txt") as f:
            seen.append(f.read())
        meet()  # or rank 0 is already writing the next one
    return seen


def test_reader_sees_what_rank_0_wrote(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _write_then_read, tmp_path) == [["round 0", "round 1", "round 2"]] * 2


def _save_then_load(folder: Path) -> list[float]:
    seen = []
    for n in range(3):
        path = folder / f"{n}.npy"
        main_only(_save_slowly)(path, float(n))
        seen.append(float(np.load(rank_zero.written(path))))
    return seen


def _save_slowly(path: Path, value: float) -> None:
    time.sleep(0.3)
    np.save(path, value)


def test_files_of_other_kinds_are_waited_for(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _save_then_load, tmp_path) == [[0.0, 1.0, 2.0]] * 2


def _write_and_read_on_rank_1_alone(path: Path) -> str | None:
    # Closed by the last reference, as scripts do, and not by the garbage collector.
    gc.disable()
    json.dump({"rank": world.rank(), "wait": world.is_main() and time.sleep(0.3)}, rank_zero.open(path, "w"))
    gc.enable()
    text = None if world.is_main() else rank_zero.open(path).read()
    meet()
    return text


def test_reader_alone_and_file_closed_by_its_last_reference(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _write_and_read_on_rank_1_alone, tmp_path / "a.json") == [None, '{"rank": 0, "wait": null}']


def _append_binary_and_exclusive(folder: Path) -> list[Any]:
    os.chdir(folder)
    kinds = []
    for mode, data in [("x", "1"), ("a", "2"), ("wb", b"3"), ("ab", b"4"), ("w+", "5"), ("a+", "6"), ("r+b", b"7")]:
        name = "b.bin" if "b" in mode else "a.txt"
        if mode == "w+":
            name = "c.txt"
        with rank_zero.open(name, mode, **({} if "b" in mode else {"encoding": "utf-8"})) as f:
            f.write(data)
            kinds.append((type(f), f.name if "+" not in mode else None))
            if "+" in mode:
                f.seek(0)
                kinds.append(f.read())
        meet()
    return kinds


def test_every_mode_gives_the_same_kind_of_file(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks(2, _append_binary_and_exclusive, tmp_path)
    assert first == second
    assert [item for item in first if isinstance(item, (str, bytes))] == ["5", "126", b"74"]
    assert (tmp_path / "a.txt").read_text() == "126"
    assert (tmp_path / "b.bin").read_bytes() == b"74"
    assert (tmp_path / "c.txt").read_text() == "5"


def test_alone_it_is_pythons_open(tmp_path: Path) -> None:
    with rank_zero.open(tmp_path / "a", "w") as f:
        assert type(f) is io.TextIOWrapper
        f.write("x")
    with rank_zero.open(str(tmp_path / "a"), "rb", 0) as raw:
        assert type(raw) is io.FileIO
        assert raw.read() == b"x"
    with rank_zero.open(os.open(tmp_path / "a", os.O_RDONLY)) as f:
        assert f.read() == "x"
    with pytest.raises(FileNotFoundError):
        rank_zero.open(tmp_path / "none")
    with pytest.raises(ValueError, match="invalid mode"):
        rank_zero.open(tmp_path / "a", "q")


# --- waiting ---


def _counts_differ(path: Path) -> str:
    # Rank 1 sees the file that rank 0 has written meanwhile, and so passes one more write than rank 0.
    if world.is_main():
        path.write_text("old")
    meet()
    if not world.is_main():
        main_only(os.remove)(path)
    main_only(write_slowly)(path, "new")
    return rank_zero.open(path).read()


def test_counts_that_differ_do_not_hang(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _counts_differ, tmp_path / "a") == ["new", "new"]


def _in_forked_child(path: Path) -> bytes:
    main_only(write_slowly)(path, "x")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"none" if file_sync.store() is None else b"some")
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read, 10)
    meet()  # the store still works
    return answer + rank_zero.open(path, "rb").read()


def test_forked_children_leave_the_store_alone(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _in_forked_child, tmp_path / "a") == [b"nonex"] * 2


# --- main_only ---


def _copy_best(folder: Path) -> list[str]:
    seen = []
    with rank_zero.open(folder / "last.txt", "w") as f:
        f.write("model")
    main_only(time.sleep)(0.3)
    main_only(shutil.copyfile)(folder / "last.txt", str(folder / "best.txt"))
    seen.append(rank_zero.open(folder / "best.txt").read())
    main_only(shutil.copytree)(folder, folder / "copy", ignore=shutil.ignore_patterns("copy"))
    seen.append(rank_zero.open(folder / "copy" / "last.txt").read())  # the folder is what the call named
    return seen


def test_reads_wait_for_calls(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _copy_best, tmp_path) == [["model", "model"]] * 2


def _write_without_an_argument_that_is_a_path(folder: Path) -> list[str | None]:
    main_only(os.system)(f"sleep 0.3; echo command > {folder / 'a'}")
    seen = [None if world.is_main() else rank_zero.open(folder / "a").read()]
    meet()
    main_only(functools.partial(time.sleep, 0.3))()
    main_only((folder / "b").write_text)("method")
    seen.append(None if world.is_main() else rank_zero.open(folder / "b").read())
    meet()
    return seen


def test_reads_wait_for_commands_and_methods(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _write_without_an_argument_that_is_a_path, tmp_path) == [[None] * 2, ["command\n", "method"]]


def _write(path: Path, text: str, pause: float = 0) -> None:
    with rank_zero.open(path, "w") as f:
        time.sleep(pause)
        f.write(text)


def _read_and_write_on_rank_0_alone(path: Path) -> str | None:
    def alone() -> None:
        for text in ("1", "2"):
            _write(path, text)
            assert rank_zero.open(path).read() == text
        with main_first(), rank_zero.open(path, "a+") as f:
            f.write("3")

    main_only(alone)()
    _write(path, "last", pause=0.3 * world.is_main())
    text = None if world.is_main() else rank_zero.open(path).read()
    with main_first():  # has the same number on both ranks
        pass
    meet()
    return text


def test_what_rank_0_does_alone_is_not_counted(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _read_and_write_on_rank_0_alone, tmp_path / "a") == [None, "last"]


def _use_module() -> list[str]:
    logs = main_only(logging)
    return [repr(logs.getLevelName(10)), repr(logs.Formatter.default_time_format)]


def test_modules(ranks: Any) -> None:
    first, second = ranks(2, _use_module)
    assert first == ["'DEBUG'", "'%Y-%m-%d %H:%M:%S'"]
    assert second == [
        f"<logging.{what}: on rank 0 alone>" for what in ("getLevelName(...)", "Formatter.default_time_format")
    ]


class Writer:
    """Like a SummaryWriter."""

    opened: ClassVar[list[str]] = []

    def __init__(self, folder: str) -> None:
        self.folder = folder
        Writer.opened.append(folder)

    def add(self, value: float) -> str:
        return "added"


def _use_writer(folder: str) -> tuple[list[str], str, bool, bool]:
    Writer.opened.clear()
    writer = main_only(Writer)(folder)
    told = repr(writer.add(1.0))
    return Writer.opened, told, bool(writer), isinstance(writer, Writer)


def test_objects_live_on_rank_0(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks(2, _use_writer, str(tmp_path))
    assert first == ([str(tmp_path)], "'added'", True, True)
    assert second == ([], "<Writer(...).add(...): on rank 0 alone>", True, False)


class Table:
    """Like an `h5py.File`."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.items[key] = value


def _set_items() -> list[Any]:
    """What is looked at, on this rank, when an item is set."""
    looked: list[Any] = []
    plain = rank_zero.materialize
    rank_zero.materialize = lambda value: looked.append(value) or plain(value)  # type: ignore[func-returns-value]
    try:
        table = main_only(Table)()
        looked.clear()
        table["x"] = 3
    finally:
        rank_zero.materialize = plain
    return [each[0][2] if isinstance(each, tuple) else each for each in looked]


def test_setting_an_item_is_a_look_of_all_ranks(ranks: Any) -> None:
    assert ranks(2, _set_items) == [[3], [3]]


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
    del run.config["wd"]
    assert "wd" not in run.config
    assert (list(run), len(run), bool(run)) == ([], 0, True)
    with pytest.raises(TypeError):
        run.step + 1
    with pytest.raises(TypeError):
        float(run.summary.best)  # type: ignore[arg-type]


def test_alone_main_only_changes_nothing() -> None:
    for thing in (print, Writer, functools.partial(print), logging, 3):
        assert main_only(thing) is thing


# --- main_first ---


def _download(path: Path) -> tuple[bool, str]:
    with main_first():
        found = path.exists()
        if not found:
            write_slowly(path, f"by {world.rank()}")
    return found, path.read_text()


def test_main_first(ranks: Any, tmp_path: Path) -> None:
    first, *others = ranks(3, _download, tmp_path / "data")
    assert first == (False, "by 0")
    assert others == [(True, "by 0")] * 2


def _fetch_on_machines_of_two(folder: Path) -> list[Any]:
    """Four ranks as two machines; what each finds, and which of them wrote."""
    os.chdir(folder)
    place = world.current()
    place.local_rank, before = place.rank % 2, place.local_rank
    machine = place.rank // 2
    try:
        with main_first():
            # Only the first of each machine writes, by whatever way; nothing in here waits for another rank.
            with rank_zero.open(f"opened{machine}", "w") as f:
                f.write(f"{place.rank}")
            with rank_zero.open(f"opened{machine}", "r+") as f:
                f.seek(1)
                f.write("+")
                f.seek(0)
                opened = f.read()
            save(place.rank, f"saved{machine}")
            main_only(write_slowly)(Path(f"called{machine}"), f"{place.rank}")
            with main_first():
                found = [opened, torch.load(f"saved{machine}"), Path(f"called{machine}").read_text()]
        main_only(Path("after").write_text)(f"{place.rank}")
        return [*found, rank_zero.open("after").read()]
    finally:
        place.local_rank = before


def test_in_main_first_the_first_of_each_machine_writes(ranks: Any, tmp_path: Path) -> None:
    first, second = ["0+", 0, "0", "0"], ["2+", 2, "2", "0"]
    assert ranks(4, _fetch_on_machines_of_two, tmp_path) == [first, first, second, second]


def _skip_one(path: Path) -> bool:
    if world.is_main():
        with main_first():
            write_slowly(path, "x")
    with main_first():
        return path.exists()


def test_ranks_may_differ_in_what_they_pass(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _skip_one, tmp_path / "x") == [True, True]


def _look_after_a_write(path: Path) -> bool:
    main_only(write_slowly)(path, "x")
    with main_first():
        return path.exists()


def test_main_first_waits_for_what_rank_0_writes(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _look_after_a_write, tmp_path / "x") == [True, True]


class MirrorError(Exception):
    pass


class MirrorGoneError(OSError):
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


ERRORS: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: FileNotFoundError(2, "gone"), "FileNotFoundError: [Errno 2] gone"),
    (lambda: KeyError("k"), "KeyError: 'k'"),
    (lambda: MirrorError("no network"), "RuntimeError: MirrorError: no network"),
    (lambda: MirrorGoneError("no network"), "OSError: MirrorGoneError: no network"),
    (lambda: UnicodeDecodeError("ascii", b"x", 0, 1, "odd"), "UnicodeError: UnicodeDecodeError: 'ascii' codec can't"),
    (lambda: SystemExit("no data"), "SystemExit: 1"),
    (lambda: SystemExit(3), "SystemExit: 3"),
    (lambda: KeyboardInterrupt(), "RuntimeError: KeyboardInterrupt: "),
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
