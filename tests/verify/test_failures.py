"""What is told of a side that could not run: where its ranks are first, in its own file's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp2ddp.verify import failures
from dp2ddp.verify.run.runs import Run
from dp2ddp.verify.run.side_by_side import SideBySide

WAITS = """dp2ddp: a rank has waited for the others for 9 s:
  rank 0 at train.py:61 for 10 s: is at work: time.sleep(1)
  rank 1 at train.py:19 for 9 s: waits for the random state (exchange 16)
The job goes on when they do, and ends if nothing moves for 1800 s.
"""
RAISES = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 63, in main
[rank1]:     loss = ddp.broadcast(loss)
[rank1]:   File "/venv/dp2ddp_runtime/ranks/exchange.py", line 72, in exchange
[rank1]:     told = _exchange(kind, value, exact)
[rank1]: RuntimeError: Connection closed by peer
[rank1]: Exception raised from read at pair.cc:534 (most recent call first):
[rank1]: frame #0: c10::Error::Error() + 0x9d (0x7f in libc10.so)
[rank1]: frame #1: gloo::transport::tcp::Pair::read() + 0x1 (0x7f in libtorch_cpu.so)
"""


@pytest.fixture
def sides() -> SideBySide:
    return SideBySide(Path(), {}, {}, names={"train.py": "train_ddp.py"})


def _run(folder: Path, stderr: str) -> Path:
    (folder / "rank0").mkdir()
    (folder / "rank0" / "stderr.txt").write_text(stderr)
    return folder


def test_one_that_has_no_end_says_where_its_ranks_are(tmp_path: Path, sides: SideBySide) -> None:
    failure = failures.timed_out("converted", 30, {"converted": _run(tmp_path, WAITS)}, sides)
    assert failure.reason == "still running after 30 seconds"
    assert failure.stderr == WAITS.replace("train.py", "train_ddp.py")


def test_frames_of_cpp_are_left_out(tmp_path: Path, sides: SideBySide) -> None:
    run = Run(_run(tmp_path, RAISES), (1,), 1.0)
    failure = failures.failure("converted", {"original": Run(tmp_path, (0,), 1.0), "converted": run}, sides)
    assert failure is not None
    assert failure.reason == "RuntimeError: Connection closed by peer"
    assert failure.stderr == RAISES[: RAISES.index("[rank1]: Exception raised")].replace('"train.py"', '"train_ddp.py"')


LOST = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
RuntimeError: [/pytorch/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1024
"""
CAUSE = """Traceback (most recent call last):
  File "train.py", line 8, in <module>
    loss = criterion(output, y)
RuntimeError: Expected all tensors to be on the same device
"""


def test_a_rank_that_lost_another_one_isnt_the_cause(tmp_path: Path, sides: SideBySide) -> None:
    _run(tmp_path, LOST)
    (tmp_path / "rank1").mkdir()
    for last, reason in ((CAUSE, "RuntimeError: Expected all tensors"), (LOST, "RuntimeError: [/pytorch/gloo")):
        (tmp_path / "rank1" / "stderr.txt").write_text(last)
        done = {"original": Run(tmp_path, (0,), 1.0), "converted": Run(tmp_path, (1, 1), 1.0)}
        failure = failures.failure("converted", done, sides)
        assert failure is not None
        assert failure.reason.startswith(reason)
        assert last.splitlines()[2] in failure.stderr
