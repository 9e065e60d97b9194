"""Files in their places: each of them whole, and none where one can't be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp2ddp.errors import BadInput
from dp2ddp.project import placing


def contents(folder: Path) -> dict[str, str]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_text() for path in paths if path.is_file()}


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("old")

    def stage() -> None:
        with placing.staging(tmp_path) as staged:
            (staged / "a").write_text("new")
            (staged / "x").write_text("new")

    with pytest.raises(BadInput, match=r"written before: .*/a$"):
        stage()
    assert contents(tmp_path) == {"a": "new", "x/mine": "old"}


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
