"""dev.py: what it says when it can't set up, and that it does nothing twice. Its setting up is run by .ci/run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import fixture_data
import pytest


@pytest.fixture
def dev(tmp_path: Path) -> ModuleType:
    """dev.py as a module of its own, with its environments under `tmp_path`."""
    spec = importlib.util.spec_from_file_location("dev", fixture_data.ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dev"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    module.ROOT = tmp_path
    return module


def test_without_venv_it_says_so_in_one_line(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named venv' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(dev, "MAIN", dev.Environment(tmp_path / ".venv", (), str(python)))
    assert dev.main(["test"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dev.py: can't create .venv: No module named venv; install")
    assert not (tmp_path / ".venv").exists()


def test_what_another_recipe_had_is_gone(dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a package that was dropped: what still needs it fails here, and not on another machine."""
    monkeypatch.setattr(dev.Environment, "_install", lambda self: None)
    for packages in ((), ("other",)):
        dev.Environment(tmp_path / ".venv", packages).make()
        assert not (tmp_path / ".venv" / "dropped").exists()
        (tmp_path / ".venv" / "dropped").touch()


def test_without_an_old_python_the_oldest_torch_is_skipped(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shim = tmp_path / "python3.9"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.9: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setattr(dev, "candidates", lambda: iter([str(tmp_path / "none"), str(shim)]))
    assert dev.main(["test", "--oldest"]) == 0
    assert "skipped" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["check", "now"], ["dist", "now"], ["audit", "now"]])
def test_wrong_usage_ends_with_code_2(dev: ModuleType, arguments: list[str]) -> None:
    try:
        code = dev.main(arguments)
    except SystemExit as error:  # argparse's own way
        code = error.code
    assert code == 2
