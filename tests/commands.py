"""The command as tests call it, in their own process, and the files that they give it."""

from __future__ import annotations

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


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Makes files, by their paths in a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
