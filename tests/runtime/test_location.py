"""Which line of a program an error names, and ranks compare."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PROGRAM = """
import collections
import torch
from dp2ddp_runtime.place import line as here

class Net(torch.nn.Module):
    def forward(self):
        print(here())

def main():
    print(here())
    Net()()
    collections.UserList([2, 1]).sort(key=lambda number: print(here()) or number)
"""


def test_lines_of_a_program_that_is_installed(tmp_path: Path) -> None:
    """Its own lines lie where other installed packages do, and the command that started it is one of them."""
    venv.create(tmp_path, with_pip=False, symlinks=True)
    python = tmp_path / "bin/python"
    package = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path)}))
    (package / "program.py").write_text(PROGRAM)
    command = tmp_path / "bin/train"
    command.write_text(f"#!{python}\nimport sys\nfrom program import main\nsys.exit(main())\n")
    script = tmp_path / "script.py"
    script.write_text("from program import main\nmain()\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def printed(*started: Path | str) -> list[str]:
        done = subprocess.run([python, *started], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    own = ["program.py:11", "program.py:8", "program.py:13", "program.py:13"]
    assert printed(command) == own
    assert printed(script) == ["script.py:2"] * 4, "a package that the user's script calls isn't the program"
