"""Rank 0 has the terminal: what the others print, log, warn of and stop at is nowhere; their errors are heard."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from pathlib import Path

import pytest
from starts import TORCHRUN, Warm, write

SPEAKS = """
import contextlib, io, logging, logging.handlers, pdb, warnings
early = logging.getLogger("early")
early.addHandler(logging.StreamHandler())
from sys import stderr
ddp.setup()
net = ddp.wrap_model(torch.nn.Linear(2, 1))
assert ddp.world_size() == 2
print("printed")
print("to stderr", file=sys.stderr)
print("to the first stdout", file=sys.__stdout__, flush=True)
stderr.write("kept\\n")
sys.stdout.write("written\\n")
sys.stdout.flush()
early.error("logged")
logging.basicConfig(filename="log.txt", filemode="w")
logging.error("logged to a file")
rotating = logging.handlers.RotatingFileHandler("rotated.txt", mode="w", maxBytes=10, backupCount=2)
early.addHandler(rotating)
early.error("longer than ten bytes")
rotating.doRollover()
rotating.close()
warnings.warn("warned")
if ddp.rank():
    breakpoint()
    pdb.set_trace()
# What the script itself captures is its own business.
captured = io.StringIO()
with contextlib.redirect_stdout(captured):
    print("captured")
assert captured.getvalue() == "captured\\n"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("seen")
assert len(caught) == 1
ddp.barrier()
"""


@pytest.mark.parametrize("launcher", [(), TORCHRUN])
def test_everything_is_said_once(warm: Warm, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    script = write(tmp_path, SPEAKS)
    done = warm.start(*launcher, script, nproc=None if launcher else 2, cwd=tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["printed", "to the first stdout", "written"]
    for text in ("to stderr", "kept", "logged\n", "longer than ten bytes", "UserWarning: warned"):
        assert done.stderr.count(text) == 1, text
    alone = tmp_path / "alone"
    alone.mkdir()
    one = SPEAKS.replace("assert ddp.world_size() == 2\n", "")
    assert warm.start(write(alone, one), nproc=1, cwd=alone).returncode == 0
    found, wanted = ({path.name: path.read_text() for path in top.glob("*.txt*")} for top in (tmp_path, alone))
    assert found == wanted
    assert "longer than ten bytes\n" in found.values()


def test_an_error_in_a_thread_of_another_rank_is_heard(warm: Warm, tmp_path: Path) -> None:
    body = """
        import threading
        ddp.setup()
        net = ddp.wrap_model(torch.nn.Linear(2, 1))
        if ddp.rank():
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        ddp.barrier()
        time.sleep(1.5)
        ddp.barrier()
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ZeroDivisionError") == 1
    assert done.stderr.count("an error in a thread of rank 1:") == 1


def test_a_model_in_a_thread_ends_the_program_that_waits_for_it(warm: Warm, tmp_path: Path) -> None:
    body = """
        import threading
        ddp.setup()
        net = ddp.wrap_model(torch.nn.Linear(2, 1))
        threading.Thread(target=lambda: net(torch.ones(4, 2)), daemon=True).start()
        threading.Event().wait()
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert (done.returncode, done.stderr.count("is in a thread of its own")) == (1, 1), done.stderr


TERMINAL = """
import os, shutil, subprocess, sys
import dp2ddp_runtime as ddp
import torch
size = os.popen("stty size").read()  # as utils.py of pytorch-cifar does while it is imported
ddp.setup()
ddp.wrap_model(torch.nn.Linear(1, 1))
found = [sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), size, os.popen("stty size").read()]
found += [list(os.get_terminal_size(*fd)) for fd in ((0,), (1,), ())] + [list(shutil.get_terminal_size())]
try:
    os.get_terminal_size(2)
except OSError:
    found.append("no terminal")
if ddp.rank():
    try:
        os.read(0, 1)
    except OSError:
        found.append("what is typed is rank 0's")
print(ddp.world_size(), ddp.gather(found))
"""


def test_whether_output_is_a_terminal_is_the_same_on_all_ranks(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TERMINAL)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 41, 93, 0, 0))
    unset = {"COLUMNS": "", "LINES": ""}
    done = warm.start(script, env=unset, stdin=theirs, stdout=theirs, forked=True)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    own = [True, True, False, "41 93\n", "41 93\n", *[[93, 41]] * 4, "no terminal"]
    other = [*own, "what is typed is rank 0's"]
    assert os.read(ours, 2000).decode().splitlines() == [f"2 {[own, other]}"]
    os.close(ours)
