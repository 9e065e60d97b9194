"""The command as tests call it, in their own process or in one of its own, and the files that they give it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from dp2ddp.cli import main

# Before click 8.2 (the newest for Python 3.9 is 8.1), the two outputs are kept apart only on demand.
_SEPARATE: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def command(*arguments: str, given: str | bytes | None = None) -> Result:
    """What `dp2ddp ARGUMENTS` does with `given` on its standard input; its two outputs are kept apart."""
    return CliRunner(**_SEPARATE).invoke(main, arguments, input=given)


def python(*arguments: str, here: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, which finds what this one does."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False, timeout=200)


def started(
    *arguments: str,
    before: str = "",
    way: str = "-m dp2ddp",
    shell: str = "",
    here: Path | None = None,
    given: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command as a shell starts it, with redirections; the folder is none in which Python looks for modules."""
    root = Path(__file__).parents[1]
    return subprocess.run(
        ["sh", "-c", f'{before} exec "$0" {way} "$@" {shell}', sys.executable, *arguments],
        cwd=here,
        input=given,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "runtime")])},
        timeout=200,
    )


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Makes files, by their paths in a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
