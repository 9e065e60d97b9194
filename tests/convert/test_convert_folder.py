"""`dp2ddp convert` of directories and of scripts with what they import."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import command, python, write
from projects import CONVERTED, FILES, read, run

from dp2ddp.convert.running import STARTS, TRY

_NETS = "import torch.nn as nn\ndef build():\n    return nn.DataParallel(nn.Linear(4, 2))\n"


def test_a_directory_becomes_a_mirrored_tree(project: Path) -> None:
    (project / "tools" / "run.sh").write_text("#!/bin/sh\n")
    (project / "tools" / "run.sh").chmod(0o755)
    (project / "nets.py").chmod(0o640)
    (project / "empty" / "folder").mkdir(parents=True)
    (project / "data").symlink_to("../elsewhere")
    result = run("project", "-o", "out")
    assert result.exit_code == 0, result.output
    assert read("out") == {**CONVERTED, "tools/run.sh": "#!/bin/sh\n"}
    assert os.access("out/tools/run.sh", os.X_OK)
    assert os.stat("out/nets.py").st_mode & 0o777 == 0o640
    assert os.stat("out").st_mode == os.stat("project").st_mode
    assert os.readlink("out/data") == "../elsewhere"
    assert Path("out/empty/folder").is_dir()
    assert read("project")["nets.py"] == FILES["nets.py"]
    assert sorted(os.listdir()) == ["out", "project"]


def test_the_summary_names_scripts_and_changed_files(project: Path) -> None:
    write(project, {"cache/x": "", ".gitignore": "cache/\n"})
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    assert run("project", "-o", "out").stderr.splitlines() == [
        "project -> out: 4 of 8 files changed, for 2 scripts",
        "tools/test.py: 1 change",
        "train.py: 1 change",
        "nets.py: 1 change",
        "utils/loaders.py: 1 change",
        "    2  lets the processes start",
        "    1  wraps the model: one replica in each process",
        "    1  splits batches over the processes",
        "not looked at: 1 ignored by git, 1 version control",
        f"Run them: python out/train.py   # {STARTS}; {TRY}",
        "  and in the same way out/tools/test.py",
        "  dp2ddp_runtime must be there where a changed file runs: convert with --vendor, or pip install "
        "./runtime (of dp2ddp).",
    ]


def test_a_script_goes_with_the_package_from_which_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would find the package that is there already, which isn't converted."""
    train = "from pkg.nets import build\nnet = build()\n"
    files = {"pkg/train/train.py": train, "pkg/nets.py": _NETS, "pkg/__init__.py": "", "other/pkg/nets.py": ""}
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    done = command("convert", "pkg/train/train.py", "-o", "out/")
    assert sorted(read("out")) == ["pkg/__init__.py", "pkg/nets.py", "pkg/train/train.py"]
    assert "\nRun it: PYTHONPATH=out python out/pkg/train/train.py   # one process" in done.stderr
    write(tmp_path, {"examples/train.py": train})
    done = command("convert", "examples/train.py", "-o", "out2/")
    assert "\nRun it: PYTHONPATH=out2 python out2/examples/train.py   # one process" in done.stderr
    write(tmp_path, {"lib/lib/nets.py": _NETS, "lib/tools/train.py": train.replace("pkg", "lib")})
    done = command("convert", "lib", "-o", "o5")  # the repository is called as its package is
    assert "\nRun it: PYTHONPATH=o5 python o5/tools/train.py   # one process" in done.stderr
    finds = "import sys\nsys.path.insert(0, '.')\n" + train  # by itself
    write(tmp_path, {"examples/train.py": finds, "nets/nets.py": _NETS, "nets/train.py": train.replace("pkg.", "")})
    for args in (["examples/train.py", "-o", "o/"], ["nets", "-o", "o/nets"]):  # which has `nets.py` in itself
        assert "\nRun it: python o/" in command("convert", *args).stderr
    write(tmp_path, {"pkg/train/train.py": "import sys\nsys.path.append('../')\nfrom nets import build\nbuild()\n"})
    write(
        tmp_path, {"up/t/t.py": "import sys\nsys.path.append('.')\nsys.path.append('..')\nfrom n import *\nbuild()\n"}
    )
    write(tmp_path, {"up/n.py": _NETS})
    assert "\nRun it: python o4/t/t.py   # one process" in command("convert", "up", "-o", "o4").stderr
    assert "\nRun it: cd o3/train && python train.py   # one process" in command("convert", "pkg", "-o", "o3").stderr


def test_a_directory_in_place(project: Path) -> None:
    before = (project / "plain.py").stat().st_mtime_ns
    assert run("project", "--in-place").exit_code == 0
    assert read("project") == CONVERTED
    assert (project / "plain.py").stat().st_mtime_ns == before
    assert run("project", "--in-place").stderr == "project: nothing to convert\n"


@pytest.mark.parametrize("args", [["-o", "out"], ["--in-place"]])
def test_all_files_are_written_or_none(project: Path, monkeypatch: pytest.MonkeyPatch, args: Sequence[str]) -> None:
    synced: list[int] = []

    def refuse(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 1:
            raise OSError(28, "No space left on device")

    def refuse_all(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "rename", refuse_all)
    result = run("project", *args)
    assert result.exit_code == 2
    assert "can't be written (No space left on device); nothing was changed\n" in result.stderr
    assert read("project") == FILES
    assert os.listdir() == ["project"]


def test_the_runtime_is_copied_beside_every_script(project: Path) -> None:
    assert run("project", "-o", "out", "--vendor").exit_code == 0
    copies = [path.relative_to("out").as_posix() for path in sorted(Path("out").rglob("dp2ddp_runtime"))]
    assert copies == ["dp2ddp_runtime", "tools/dp2ddp_runtime"]
    assert read("out") == CONVERTED
    # The copies are none of the project's own files, and stay as they are.
    assert run("out", "--in-place", "--vendor").stderr == "out: nothing to convert\n"
    Path("out/tools/dp2ddp_runtime/world.py").write_text("mine")
    write(Path("out"), FILES)
    refused = run("out", "--in-place", "--vendor")
    assert refused.stderr.startswith("dp2ddp: out/tools/dp2ddp_runtime: exists already, and is not this version")
    assert read("out") == FILES
    assert run("out", "--in-place", "--vendor", "--force").exit_code == 0
    assert Path("out/tools/dp2ddp_runtime/world.py").read_text() != "mine"


def test_ignored_files_that_are_imported_are_taken_in(project: Path) -> None:
    write(project, {".gitignore": "utils/\n", "utils/data.bin": ""})
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    result = run("project", "-o", "out")
    assert (
        "  project/utils/loaders.py: ignored by git, but imported by train.py: converted all the same" in result.stderr
    )
    assert read("out") == {**CONVERTED, ".gitignore": "utils/\n"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["project", "-o", "project"],
            "dp2ddp: project: the output is the input; use --in-place to convert in place\n",
        ),
        (["project", "-o", "project/out"], "dp2ddp: project/out: output and input lie inside each other (project)"),
        (["project", "-o", "none/out"], "dp2ddp: none/out: no such folder: "),
        (["project", "-o", "-"], "dp2ddp: -: a directory can't go to standard output"),
    ],
)
def test_outputs_that_make_no_sense_are_refused(project: Path, args: Sequence[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert read("project") == FILES
    assert os.listdir() == ["project"]


def test_a_script_to_a_file_is_refused_where_others_must_change_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for target in ("out.py", "-"):
        result = run("train.py", "-o", target)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr == (
            f"dp2ddp: train.py: 2 other files must change, too, and {target} is one file: nets.py, utils/loaders.py; "
            "write them all to a folder (-o FOLDER/), or --in-place\n"
        )
    assert read(".") == FILES


def test_many_scripts_are_converted_one_by_one(tmp_path: Path) -> None:
    """For real, in a process of its own: what comes back from the others is whole, errors included."""
    script = "import torch.nn as nn\n\nnet = nn.DataParallel(Net())\nprint(net)\n"
    files = {f"script_{number}.py": script for number in range(5)}
    write(tmp_path / "in", {**files, "dist.py": f"from accelerate import Accelerator\n{script}"})
    done = python("-m", "dp2ddp", "convert", "in", "-o", "out", here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "  in/dist.py:1: sets up distributed training already: imports Accelerate" in done.stderr
    assert all("wrap_model" in (tmp_path / "out" / name).read_text() for name in files)


def test_a_trainer_that_is_no_python_is_open_and_trainers_are_run_first(tmp_path: Path) -> None:
    wrap = "import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
    for name, more in {"demo.py": "", "main_train.py": "", "train.py": "if net:\n\tx = 1\n        y = 2\n"}.items():
        (tmp_path / name).write_text(wrap + more)
    done = command("convert", str(tmp_path), "-o", str(tmp_path.with_name("out")), "--strict")
    assert (done.exit_code, "train.py:5" in done.stderr) == (1, True), done.stderr
    checked = command("check", str(tmp_path))
    assert (checked.exit_code, "train.py:5" in checked.stdout) == (1, True), checked.output
    assert "main_train.py" in next(line for line in done.stderr.splitlines() if line.startswith("Run them:"))
