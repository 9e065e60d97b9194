"""What is published: both packages, built, and installed as users do, where there is no torch."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import fixture_data
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import dp2ddp

SCRIPT = """\
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
"""


def _call(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command among none of this run's own packages."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`dp2ddp.whl`, `dp2ddp.tar.gz`, `dp2ddp_runtime.whl`, `dp2ddp_runtime.tar.gz`."""
    target = tmp_path_factory.mktemp("dist")
    for project in (fixture_data.ROOT, fixture_data.ROOT / "runtime"):
        done = _call(sys.executable, "-m", "build", "--no-isolation", "-o", target, project)
        assert done.returncode == 0, done.stdout + done.stderr
    return {
        f"{path.name.split('-')[0]}{'.whl' if path.suffix == '.whl' else '.tar.gz'}": path for path in target.iterdir()
    }


def _files(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def _metadata(path: Path) -> Message:
    (name,) = (name for name in _files(path) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(path) as archive:
        return email.message_from_bytes(archive.read(name))


def test_both_have_one_version_and_fit_together(built: dict[str, Path]) -> None:
    assert sorted(built) == ["dp2ddp.tar.gz", "dp2ddp.whl", "dp2ddp_runtime.tar.gz", "dp2ddp_runtime.whl"]
    codemod, runtime = _metadata(built["dp2ddp.whl"]), _metadata(built["dp2ddp_runtime.whl"])
    version = Version(dp2ddp.__version__)
    assert codemod["Version"] == runtime["Version"] == str(version)
    assert runtime.get_all("Requires-Dist") == ["torch>=2.1"]
    needs = [Requirement(line) for line in codemod.get_all("Requires-Dist", [])]
    for extra in ("runtime", "verify"):
        named = [each for each in needs if each.name == "dp2ddp-runtime" and each.marker is not None]
        (pin,) = (each for each in named if each.marker.evaluate({"extra": extra}))
        assert version in pin.specifier
        assert Version(f"{version.major}.{version.minor + 1}") not in pin.specifier
    plain = {each.name for each in needs if each.marker is None or "extra" not in str(each.marker)}
    assert plain == {"click", "jinja2", "libcst", "tomli"}


def _sources(folder: Path) -> dict[str, bytes]:
    """The files in a folder and those below, by their paths."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_both_are_typed_licensed_and_share_no_file(built: dict[str, Path]) -> None:
    codemod, runtime = _files(built["dp2ddp.whl"]), _files(built["dp2ddp_runtime.whl"])
    assert "dp2ddp/py.typed" in codemod
    assert "dp2ddp_runtime/py.typed" in runtime
    assert not codemod & runtime
    for each in (codemod, runtime):
        assert [name for name in each if name.endswith(".dist-info/licenses/LICENSE")]
    assert {name for name in runtime if name.startswith("dp2ddp_runtime/")} == {
        f"dp2ddp_runtime/{name}" for name in _sources(dp2ddp.RUNTIME_SOURCE)
    }
    with tarfile.open(built["dp2ddp_runtime.tar.gz"]) as archive:
        assert f"dp2ddp_runtime-{dp2ddp.__version__}/LICENSE" in archive.getnames()


def test_it_converts_checks_and_vendors_without_torch(built: dict[str, Path], tmp_path: Path) -> None:
    uv = (sys.executable, "-m", "uv")
    assert _call(*uv, "venv", "--python", sys.executable, tmp_path / "venv").returncode == 0
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    done = _call(*uv, "pip", "install", "--python", programs / "python", built["dp2ddp.whl"])
    assert done.returncode == 0, done.stderr
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return _call(programs / "dp2ddp", *args, cwd=work)

    look = "from importlib.util import find_spec; print(find_spec('torch'), find_spec('dp2ddp_runtime'))"
    assert _call(programs / "python", "-c", look).stdout == "None None\n"
    assert run("--version").stdout == f"dp2ddp, version {dp2ddp.__version__}\n"
    assert run("check", "train.py").returncode == 1
    assert "DDP002" in run("rules").stdout
    converted = run("convert", "train.py", "-o", "train_ddp.py")
    assert converted.returncode == 0, converted.stderr
    assert "convert with --vendor, or pip install ./runtime" in converted.stderr
    assert "ddp.wrap_model(nn.Linear(4, 2), device_ids=[0, 1])" in (work / "train_ddp.py").read_text()
    assert run("convert", "train.py", "-o", "out/", "--vendor").returncode == 0
    copied, header = _sources(work / "out" / "dp2ddp_runtime"), f"# dp2ddp_runtime {dp2ddp.__version__}, generated by"
    assert {"LICENSE"} <= copied.keys()
    own = _sources(dp2ddp.RUNTIME_SOURCE)
    assert copied.keys() == {*own, "LICENSE"}
    for name, data in own.items():
        first, _, rest = copied[name].partition(b"\n") if name.endswith(".py") else (header.encode(), b"", copied[name])
        assert (first.decode().startswith(header), rest) == (True, data), name
    refused = run("verify", "train.py")
    assert refused.returncode == 2
    assert refused.stderr == "dp2ddp: verify: torch is not installed; pip install torch\n"


def _commands_of_the_pages() -> list[str]:
    """What README and quick start have their readers type: first to install, then the rest, in order."""
    text = "\n".join((fixture_data.ROOT / page).read_text("utf-8") for page in ("README.md", "docs/quickstart.md"))
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    own = dict.fromkeys(" ".join(re.split(r"\s#", line)[0].split()) for line in lines if "dev.py" not in line)
    return sorted(own, key=lambda line: not line.startswith("pip "))


def _lend(name: str, target: Path) -> None:
    """Links what is installed here of a distribution, and of all that it needs, into another `site-packages`."""
    todo, lent = [name], set[str]()
    while todo:
        if (name := todo.pop()) in lent:
            continue
        lent.add(name)
        try:
            made = distribution(name)
        except PackageNotFoundError:  # which is for another system
            continue
        needs = [Requirement(line) for line in made.requires or ()]
        todo += [each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in made.files or ()} - {"..", "__pycache__"}:
            here = Path(str(made.locate_file(top)))
            if here.is_dir() and not (target / top).exists():  # file by file: what is uninstalled there stays here
                shutil.copytree(here, target / top, copy_function=os.symlink)
            elif here.is_file():
                (target / top).symlink_to(here)


@pytest.mark.timeout(900)
def test_the_commands_of_readme_and_quick_start_in_a_clean_environment(tmp_path: Path) -> None:
    """As written, but for `pip`, which is uv's, and finds this environment's torch there."""
    uv = (sys.executable, "-m", "uv")
    assert _call(*uv, "venv", "--python", sys.executable, tmp_path / "venv").returncode == 0
    programs = tmp_path / "venv" / "bin"
    called = {"pip": f'{sys.executable} -m uv pip "$@" --python {programs}/python'}
    called["torchrun"] = f'{programs}/python -m torch.distributed.run "$@"'
    for name, command in called.items():
        (programs / name).write_text(f"#!/bin/sh\nexec {command}\n")
        (programs / name).chmod(0o755)
    _lend("torch", next((tmp_path / "venv").glob("lib/python*/site-packages")))
    work = tmp_path / "work"
    work.mkdir()
    page = (fixture_data.ROOT / "docs" / "quickstart.md").read_text("utf-8")
    (work / "train.py").write_text(page.partition("<!-- file: train.py -->\n```python\n")[2].partition("```")[0])
    commands = _commands_of_the_pages()
    assert len(commands) >= 7
    for command in commands:
        cwd = fixture_data.ROOT if command.startswith("pip ") else work
        done = _call("sh", "-c", f'export PATH="{programs}:$PATH"; {command}', cwd=cwd)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert {each.name for each in work.iterdir()} >= {"train_ddp.py", "net.pt", "report.html"}
