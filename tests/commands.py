"""The command as tests call it, in their own process."""

from __future__ import annotations

from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

from dp2ddp.cli import main

# Before click 8.2 (the newest for Python 3.9 is 8.1), the two outputs are kept apart only on demand.
_SEPARATE: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def command(*arguments: str, given: str | bytes | None = None) -> Result:
    """What `dp2ddp ARGUMENTS` does with `given` on its standard input; its two outputs are kept apart."""
    return CliRunner(**_SEPARATE).invoke(main, arguments, input=given)
