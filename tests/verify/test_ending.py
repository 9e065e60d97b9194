"""A forked run ends as a script ends that Python runs: the same exit code, output and files."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from nursery import Nursery

from dp2ddp.verify.failures import OWN_FRAMES
from dp2ddp.verify.run.run_options import Options, Task
from dp2ddp.verify.start import client

LEFT_OPEN = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import beside

class Last:
    def __del__(self, write=sys.stdout.write):
        write("deleted\\n")

def later(seconds):
    time.sleep(seconds)
    print("a thread that is no daemon ends first")

here = open("here.txt", "w")
here.write("never closed")
last = Last()
atexit.register(print, "called at the exit")
threading.Thread(target=later, args=(0.1,)).start()
done = ThreadPoolExecutor(1).submit(later, 0.8)
"""
#: As many scripts write a log: what comes through is in the buffer of the output that they replace.
TEE = """
import sys

class Tee:
    def __init__(self):
        self.terminal = sys.stdout

    def write(self, text):
        self.terminal.write(text)

    def flush(self):
        pass

sys.__stdout__ = sys.stdout = open(1, "w", closefd=False)  # with a buffer, whatever PYTHONUNBUFFERED says
sys.stdout = Tee()
print("through the tee")
"""
ENDS = {
    "tee": TEE,
    "closed": "import sys; print('before'); sys.stdout.close()",
    "left open": LEFT_OPEN,
    "code": "import sys; print('first', end=''); sys.exit(300)",
    "text": "import sys; sys.exit('no data')",
    "error": "def fails():\n    raise ValueError('here')\nfails()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux")
@pytest.mark.parametrize("how", ENDS)
def test_a_forked_run_ends_as_a_script_does(nursery: Nursery, tmp_path: Path, how: str) -> None:
    places = [tmp_path / side for side in ("alone", "forked")]
    for place in places:
        (place / "rank0").mkdir(parents=True)
        (place / "train.py").write_text(ENDS[how])
        (place / "beside.py").write_text("opened = open('beside.txt', 'w')\nopened.write('neither')\n")
    alone, forked = places
    expected = subprocess.run([sys.executable, "train.py"], cwd=alone, capture_output=True, text=True)
    task = Task(str(forked), str(forked / "train.py"), [], Options())
    with nursery.installed(), client.ForkServer() as server:
        process = server.start([task.as_text()], forked, client.environment(), forked / "rank0")
        while (code := server.poll(process)) is None:
            time.sleep(0.01)
    out, errors = ((forked / "rank0" / f"{name}.txt").read_text() for name in ("stdout", "stderr"))
    assert (code, out) == (expected.returncode, expected.stdout)
    assert OWN_FRAMES.sub("", errors).replace(f"{forked}/", "") == expected.stderr.replace(f"{alone}/", "")
    files = [{path.name: path.read_text() for path in place.glob("*.txt")} for place in places]
    assert files[0] == files[1]
    assert len(files[0]) == (2 if how == "left open" else 0)
