"""Checkpoints: whole at any moment, read when they are there, with or without `module.` in their keys."""

from __future__ import annotations

import io
import os
import signal
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from dp2ddp_runtime import load, load_state_dict, save
from dp2ddp_runtime import model as models
from dp2ddp_runtime.world import world
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# --- saving ---


class Deadly:
    """Kills its process when it is pickled."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive")


def in_child(function: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_killed_during_a_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    save({"step": 1, "w": torch.arange(1000)}, path)
    old = path.read_bytes()
    # Made before the fork: OpenMP's threads don't survive it, and the child would wait for them.
    large = torch.ones(10**6)

    def die_while_pickling() -> None:
        save([large, Deadly()], path)

    def die_when_written() -> None:
        os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
        save({"step": 2, "w": large}, path)

    for die in (die_while_pickling, die_when_written):
        assert os.WTERMSIG(in_child(die)) == signal.SIGKILL
        assert path.read_bytes() == old
        assert load(path)["step"] == 1
    assert len(list(tmp_path.glob(".net.pt.*.tmp"))) == 2, "nobody was left to remove them"
    save({"step": 3}, path)
    assert load(path) == {"step": 3}


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    save(1, path)
    with pytest.raises(TypeError, match="not to be pickled"):
        save([torch.ones(3), Unpicklable()], path)
    assert os.listdir(tmp_path) == ["net.pt"]
    assert load(path) == 1
    with pytest.raises(RuntimeError, match=r"Parent directory .* does not exist"):
        save(1, tmp_path / "none" / "net.pt")
    with pytest.raises((RuntimeError, IsADirectoryError)):
        save(1, tmp_path)


def test_mode_and_links_stay(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(1, tmp_path / "new.pt")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.pt").stat().st_mode) == 0o640
    (tmp_path / "new.pt").chmod(0o600)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "latest.pt").symlink_to("../new.pt")
    save(2, tmp_path / "runs" / "latest.pt")
    assert (tmp_path / "runs" / "latest.pt").is_symlink()
    assert load(tmp_path / "new.pt") == 2
    assert stat.S_IMODE((tmp_path / "new.pt").stat().st_mode) == 0o600
    save(3, os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


# --- ranks ---


class Noted:
    """Notes when it is written."""

    times = 0

    def __reduce__(self) -> Any:
        Noted.times += 1
        return OrderedDict, ()


def _save_and_load(folder: Path) -> list[Any]:
    save([world.rank, Noted()], folder / "path.pt")
    with open(folder / "file.pt", "wb") as f:
        save({"by": world.rank}, f)
    memory = io.BytesIO()
    save(world.rank, memory)
    memory.seek(0)
    return [load(folder / "path.pt"), Noted.times, load(folder / "file.pt"), load(memory)]


def test_files_are_written_once_by_rank_0_and_memory_is_each_ranks(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, _save_and_load, tmp_path) == [[[0, {}], 1 - rank, {"by": 0}, rank] for rank in range(2)]


# --- loading ---


def _loaded(path: Path) -> list[str]:
    torch.save({"nets": [{"net": nn.DataParallel(Net())}], "step": 3}, path)
    found = []
    for each in (torch.load, load):
        saved = each(path, weights_only=False)
        net = saved["nets"][0]["net"]
        assert next(iter(net.state_dict())) == "module.fc.weight"
        assert not isinstance(net.module, models.WrappedModel)
        found += [type(net).__qualname__, str(saved["step"])]
    return found


def test_a_whole_dataparallel_comes_back_wrapped(ranks: Any, tmp_path: Path) -> None:
    """Also by `torch.load`: as the script's own `isinstance` is converted."""
    assert ranks(2, _loaded, tmp_path / "whole.pt") == [["WrappedModel", "3"] * 2] * 2
    # Alone, what is torch's own stays as in the original.
    assert ranks(1, _loaded, tmp_path / "alone.pt") == [["DataParallel", "3", "WrappedModel", "3"]]


# --- module. ---


class Holder(nn.Module):
    """A model with a part that is called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Net()


@pytest.mark.parametrize("saved", [Net, Holder, lambda: nn.DataParallel(Net()), lambda: nn.DataParallel(Holder())])
@pytest.mark.parametrize("wrapped", [False, True])
def test_keys_fit_with_or_without_prefix(saved: Any, wrapped: bool) -> None:
    torch.manual_seed(0)
    source = saved()
    inner = source.module if isinstance(source, nn.DataParallel) else source
    target = type(inner)()
    state = source.state_dict()
    keys, versions = list(state), dict(state._metadata)
    result = load_state_dict(nn.DataParallel(target) if wrapped else target, state)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert same(target.state_dict(), inner.state_dict())
    assert (list(state), dict(state._metadata)) == (keys, versions), "the caller's dictionary has changed"


def test_states_that_do_not_fit() -> None:
    state = nn.DataParallel(Net()).state_dict()
    del state["module.fc.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "fc.bias"'):
        load_state_dict(Net(), state)
    assert load_state_dict(Net(), state, strict=False).missing_keys == ["fc.bias"]
    state["extra"] = torch.ones(1)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_state_dict(Net(), OrderedDict(state))
