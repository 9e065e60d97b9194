"""Several files in their places: all or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dp2ddp.errors import BadInput
from dp2ddp.project import placing


def contents(folder: Path) -> dict[str, str]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_text() for path in paths if path.is_file()}


def fail_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Renaming to `name` fails, the first time."""
    replace = os.replace
    failed: list[object] = []

    def refuse(source: Path, target: Path) -> None:
        if Path(target).name == name and not failed:
            failed.append(target)
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)


def stage(staged: Path, *paths: str) -> None:
    for path in paths:
        (staged / path).parent.mkdir(parents=True, exist_ok=True)
        (staged / path).write_text("new")


@pytest.mark.parametrize("failing", ["x", "y", "z"])
def test_a_failure_leaves_a_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    (tmp_path / "x").write_text("old")
    (tmp_path / "z").symlink_to("x")
    fail_on(monkeypatch, failing)
    with placing.staging(tmp_path) as staged:
        stage(staged, "a/y", "x", "z")
        with pytest.raises(BadInput, match="No space left on device"):
            placing.settle(staged, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["x", "z"]
    assert (tmp_path / "x").read_text() == "old"
    assert os.readlink(tmp_path / "z") == "x"


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    stage(tmp_path, "out/x/mine")
    with placing.staging(tmp_path / "out") as staged:
        stage(staged, "a", "x")
        with pytest.raises(BadInput):
            placing.settle(staged, tmp_path / "out")
    assert contents(tmp_path) == {"out/x/mine": "new"}


def test_overwriting_keeps_modes_and_links(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(0o754)
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "y").write_text("old")
    (tmp_path / "y").chmod(0o600)
    placing.write({tmp_path / "link": b"new", tmp_path / "y": b"newer"}, mode_of=tmp_path / "y")
    assert contents(tmp_path) == {"x": "new", "link": "new", "y": "newer"}
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o754


@pytest.mark.parametrize("failing", ["x", "y", "z"])
def test_overwriting_fails_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    for name in "xyz":
        (tmp_path / name).write_text(name)
    fail_on(monkeypatch, failing)
    with pytest.raises(BadInput, match=f"{failing}: can't be written"):
        placing.write({tmp_path / name: b"new" for name in "xyz"})
    assert contents(tmp_path) == {"x": "x", "y": "y", "z": "z"}


def test_what_cant_be_put_back_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "xyz":
        (tmp_path / name).write_text(name)
    replace, calls = os.replace, []

    def refuse(source: Path, target: Path) -> None:
        calls.append(target.name)
        if calls in (["x", "y", "z"], ["x", "y", "z", "y"]):
            raise OSError(5, "Input/output error", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(
        BadInput, match=r"y: can't be put back after a failure; what was there is in .*/\.y\."
    ) as caught:
        placing.write({tmp_path / name: b"new" for name in "xyz"})
    kept = Path(str(caught.value).rsplit(" ", 1)[1])
    assert contents(tmp_path) == {"x": "x", "y": "new", "z": "z", kept.name: "y"}


def test_without_hard_links_copies_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for name in "xy":
        (tmp_path / name).write_text(name)
    fail_on(monkeypatch, "y")
    with pytest.raises(BadInput):
        placing.write({tmp_path / name: b"new" for name in "xy"})
    assert contents(tmp_path) == {"x": "x", "y": "y"}
