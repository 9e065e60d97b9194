"""Files and writers: on rank 0 alone, and read by the others when they are there."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dp2ddp_runtime import main_only, shard_loader
from dp2ddp_runtime.main_only import Absent


def write_in_c(path: str) -> None:
    """Write a file without Python's functions, as C++ does."""
    os.close(ctypes.CDLL(None).open(os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))


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
    for take in (float, int, np.asarray):
        with pytest.raises(TypeError, match=r"wandb.summary.best is on rank 0 alone .* its value is taken at .*:\d+"):
            take(run.summary.best)  # type: ignore[operator]
    torch.save({"epoch": 1}, run.file)  # as into what `main_only` has opened


class Shown(torch.utils.data.Dataset[int]):
    """Each sample writes a picture of itself, as C++ does it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        main_only(write_in_c)(f"{index}.png")
        return index


def _load_shown(folder: str, workers: int) -> None:
    os.chdir(folder)
    loader = torch.utils.data.DataLoader(Shown(), 4, num_workers=workers)
    for _ in shard_loader(loader):
        pass


@pytest.mark.parametrize("workers", [0, 2])
def test_each_rank_writes_what_its_own_samples_write(ranks: Any, tmp_path: Path, workers: int) -> None:
    ranks(2, _load_shown, str(tmp_path), workers)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{index}.png" for index in range(8)]


def test_what_main_only_leaves(ranks: Any) -> None:
    assert main_only(3) == 3, "alone"
    assert main_only(len)("ab") == main_only(functools.partial(len))("ab") == 2, "alone"
    assert ranks(2, main_only, None) == [None, None]
