"""One verification: an original beside a conversion, and what `dp2ddp verify` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bases import BASES, ROOT

_PATIENCE = 240.0  # seconds for each run of a script
_AT_ALL = 1500.0  # seconds for a verification, which may repeat them
AGREE, DIFFER, FAILED = "agree", "differ", "could not run"


@dataclass(frozen=True)
class Said:
    """What was said of a conversion.

    Attributes:
        verdict: as `verify` calls it; or what it ended with, where that was no verdict.
        step: of the first finding.
        cause: of the first finding; where the conversion could not run, the reason.
        what: the first finding's text, with the kind in front.
        side: that could not run.
    """

    verdict: str
    step: int | None = None
    cause: str = ""
    what: str = ""
    side: str = ""
    seconds: float = 0.0


def verify(script: str, conversion: str, folder: Path, data: Path, seed: int | None = None) -> Said:
    """Run a base and a conversion of it.

    Args:
        folder: an empty one, in which they run.
        data: the folder of the digits.
        seed: the script's; its own by default.
    """
    base = BASES[script]
    (folder / "train.py").write_text(base.original)
    (folder / "train_ddp.py").write_text(conversion)
    options = ["--converted=train_ddp.py", "--nproc=2", "--format=json", "--quiet", f"--timeout={_PATIENCE:.0f}"]
    command = [sys.executable, "-m", "dp2ddp", "verify", "train.py", *options]
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--", *base.started_with(data, seed)],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_AT_ALL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Said("no end", seconds=time.monotonic() - begin)
    return _read(done, time.monotonic() - begin)


def _environment() -> dict[str, str]:
    """This process's, with the checkout's packages in front: what is installed may be another checkout's."""
    paths = [str(ROOT), str(ROOT / "runtime"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _read(done: subprocess.CompletedProcess[str], seconds: float) -> Said:
    text = done.stdout[done.stdout.find("{") :]
    try:
        told: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]  # a failure's traceback may follow
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Said(f"exit code {done.returncode}", cause=last, seconds=seconds)
    failure = told["failure"]
    if failure is not None:
        reason = f"{failure['reason']}\n{failure['stderr']}"
        return Said(told["verdict"], cause=reason, what=failure["reason"], side=failure["side"], seconds=seconds)
    first = next(iter(told["findings"]), None)
    if first is None:
        return Said(told["verdict"], what="; ".join(told["notes"]), seconds=seconds)
    return Said(
        told["verdict"], first["step"], first["cause"] or "", f"[{first['kind']}] {first['what']}", seconds=seconds
    )
