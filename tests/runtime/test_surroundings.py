"""What goes on around a job: a reader of its output that ends, a terminal that is closed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from starts import Warm, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked")


def test_a_reader_that_ends_ends_the_job_with_one_message(warm: Warm, tmp_path: Path) -> None:
    """As `python train_ddp.py | head -1` does; Python's own error, once, and no rank waits for rank 0."""
    body = """
        ddp.setup(timeout=100)
        ddp.wrap_model(torch.nn.Linear(1, 1))
        while True:
            print("step", flush=True)
            ddp.barrier()
        """
    reads, writes = os.pipe()
    with warm.started(write(tmp_path, body), stdout=writes, forked=True) as job:
        os.close(writes)
        assert os.read(reads, 4) == b"step"
        os.close(reads)
        begin = time.monotonic()
        done = job.wait()
    assert time.monotonic() - begin < 5
    assert done.returncode == 1
    assert done.stderr.count("BrokenPipeError: ") == done.stderr.count("Traceback") == 1, done.stderr


def test_a_hang_up_that_is_ignored_ends_nothing(warm: Warm, tmp_path: Path) -> None:
    """As under `nohup`: the process that the user started gets it, and neither ends nor passes it on."""
    body = """
        import signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what `nohup` does before the script begins
        ddp.setup(timeout=100)
        ddp.wrap_model(torch.nn.Linear(1, 1))
        if ddp.rank():
            signal.signal(signal.SIGHUP, lambda *_: os._exit(1))
        ddp.barrier()
        open(f"began{ddp.rank()}", "w").close()
        while not os.path.exists("sent"):
            time.sleep(0.02)
        time.sleep(1)
        print("through", sum(ddp.gather(1)))
        """
    with warm.started(write(tmp_path, body), cwd=tmp_path, forked=True) as job:
        job.wait_for(tmp_path / "began0")
        job.process.send_signal(signal.SIGHUP)
        (tmp_path / "sent").touch()
        done = job.wait()
    assert (done.returncode, done.stdout, done.stderr) == (0, "through 2\n", "")
