"""Handlers of signals: what each rank would run by itself."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """
import os
import signal
import subprocess
import sys
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))

def requeue():
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])

def handler(number, frame):
    torch.save(net.state_dict(), "last.pt")
"""
TRAIN = "for _ in range(9):\n    net(torch.randn(8, 4)).sum().backward()\n"


@pytest.mark.parametrize(
    ("body", "line", "noted"),
    [
        ("    sys.exit(0)\nsignal.signal(signal.SIGUSR1, handler)\n", "", None),
        ("    os.system('sync')\n", "", None),
        (
            "    os.system('sync')\nsignal.signal(signal.SIGUSR1, handler)\n",
            "os.system('sync')",
            "this command as often",
        ),
        ("signal.signal(signal.SIGALRM, handler)\n", "signal.signal", "each rank has a timer of its own"),
    ],
)
def test_what_each_rank_would_run_by_itself(body: str, line: str, noted: str | None) -> None:
    text = _HEAD + body + TRAIN
    notes = [note for note in convert_source(text, "train.py", Options()).notes if note.rule == "DDP024"]
    assert len(notes) == bool(noted)
    for note in notes:
        assert noted is not None
        assert noted in note.what
        assert text.splitlines()[note.span.start.line - 1].strip().startswith(line)


def test_a_script_without_dataparallel_keeps_its_handlers_to_itself() -> None:
    text = _HEAD.replace("nn.DataParallel", "") + "    os.system('sync')\nsignal.signal(signal.SIGUSR1, handler)\n"
    assert not convert_source(text, "train.py", Options()).notes
