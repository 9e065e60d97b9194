"""What lies in a project's folder, and what is left out of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dp2ddp.project import tree


def make(folder: Path, *paths: str, **texts: str) -> None:
    """Makes files, and folders whose paths end in a slash."""
    for path in paths:
        place = folder / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_text("")
    for name, text in texts.items():
        (folder / name).write_text(text)


def test_files_folders_and_links_are_listed(tmp_path: Path) -> None:
    make(tmp_path, "train.py", "a/b/c.txt", "empty/", ".hidden/x")
    (tmp_path / "link.py").symlink_to("train.py")
    (tmp_path / "folder").symlink_to("a")
    (tmp_path / "dangling").symlink_to("nowhere")
    found = tree.scan(tmp_path)
    assert found.files == [".hidden/x", "a/b/c.txt", "train.py"]
    assert found.folders == [".hidden", "a", "a/b", "empty"]
    assert found.links == ["dangling", "folder", "link.py"]
    assert found.left_out == {}
    assert list(found.sources()) == ["train.py"]


def test_environments_caches_and_histories_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "a.py", ".git/config", "env/pyvenv.cfg", "conda/conda-meta/", "x/__pycache__/a.pyc")
    make(tmp_path, "node_modules/m.js", "dp.egg-info/PKG-INFO", "x/env.py")
    os.mkfifo(tmp_path / "pipe")
    found = tree.scan(tmp_path)
    assert found.files == ["a.py", "x/env.py"]
    assert set(found.left_out) == {
        ".git", "env", "conda", "x/__pycache__", "node_modules", "dp.egg-info", "pipe",
    }  # fmt: skip
    assert found.reasons["virtual environments"] == 2


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    make(tmp_path, "keep.py", "drop.log", "a/drop.log", "a/keep.log", "build/x.py", "a/build/x.py", "b/only.py")
    (tmp_path / ".gitignore").write_text("*.log\n/build/\n# a comment\n\nb/*.py\n!b/only.py\n")
    (tmp_path / "a" / ".gitignore").write_text("!keep.log\n")
    assert not tree.scan(tmp_path).left_out  # which git alone can tell
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    found = tree.scan(tmp_path)
    assert found.files == [".gitignore", "a/.gitignore", "a/build/x.py", "a/keep.log", "b/only.py", "keep.py"]
    assert found.reasons == {"ignored by git": 3, "version control": 1}


def test_what_git_tracks_is_not_ignored(tmp_path: Path) -> None:
    make(tmp_path, "p/out/kept.py", "p/out/other.py", "p/train.py", "p/logs/a.log")
    (tmp_path / ".gitignore").write_text("out/\n*.log\ntrain.py\n")
    for command in (["init", "-q"], ["add", "--force", "p/out/kept.py", "p/train.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    found = tree.scan(tmp_path / "p")
    assert found.files == ["out/kept.py", "train.py"]
    assert set(found.left_out) == {"out/other.py", "logs"}
