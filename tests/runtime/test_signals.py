"""Signals reach the script: its handlers run on all ranks together, and stopping stops everything."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dp2ddp_runtime.ranks import signals
from forks import WORKERS_OF_FORKS
from starts import TORCHRUN, Started, Warm, write

#: Rank 0 is in a collective most of the time, where Python can run no handler.
TRAIN = """
    import signal
    from torch.utils.data import DataLoader
    step = 0
    def tell(text):
        with ddp.own_files(), open(f"told{ddp.rank()}", "a") as file:
            file.write(f"{text}\\n")
    def look(number, frame):
        tell(f"looked at {step} with {sum(ddp.gather(1))}, in a worker {os.getpid() != own}")
    def save_and_leave(number, frame):
        ddp.save({"step": step}, "net.pt")
        tell(f"saved at {step}")
        sys.exit(5)
    signal.signal(signal.SIGUSR1, save_and_leave)  # before the ranks have met
    ddp.setup(timeout=60)
    own = os.getpid()
    signal.signal(signal.SIGUSR2, look)
    loader = ddp.shard_loader(DataLoader(torch.arange(20000.0).view(-1, 2), batch_size=4, num_workers=1))
    net = ddp.wrap_model(torch.nn.Linear(2, 1))
    try:
        for batch in loader:
            net(batch).sum().backward()
            step += 1
            if ddp.rank() == 1:
                time.sleep(0.02)
            if step % 10 == 0:
                tell(f"{os.getpid()} step {step}")
    except KeyboardInterrupt:
        tell(f"interrupted at {step} with {sum(ddp.gather(1))}")
        ddp.save({"step": step}, "net.pt")
    """


class Job:
    """A started script, whose ranks tell how far they are."""

    def __init__(self, folder: Path, started: Started) -> None:
        self.folder = folder
        self.started = started
        self.process = started.process
        self.wait_for("step")

    def told(self, what: str, rank: int = 0) -> list[str]:
        file = self.folder / f"told{rank}"
        return [line for line in file.read_text().splitlines() if what in line] if file.exists() else []

    def wait_for(self, what: str, more_than: int = 0) -> None:
        deadline = time.monotonic() + 150
        while min(len(self.told(what, rank)) for rank in range(2)) <= more_than:
            assert self.process.poll() is None, self.started.wait().stderr
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def ends(self) -> tuple[int, str]:
        done = self.started.wait(60)
        return done.returncode, done.stderr


@pytest.fixture
def job(warm: Warm, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    launch = getattr(request, "param", ())
    options = {"nproc": None if launch else 2, "env": {"PYTHONHASHSEED": "0"}, "forked": WORKERS_OF_FORKS}
    script = write(tmp_path, TRAIN)
    with warm.started(*launch, script, cwd=tmp_path, **options) as started:
        yield Job(tmp_path, started)


def test_handlers_run_together(job: Job, tmp_path: Path) -> None:
    job.process.send_signal(signal.SIGUSR2)
    job.wait_for("looked")
    job.process.send_signal(signal.SIGUSR1)
    assert job.ends() == (5, "")
    for what in ("looked", "saved"):
        (first,), (second,) = (job.told(what, rank) for rank in range(2))
        assert first == second
    assert job.told("looked")[0].endswith("with 2, in a worker False")
    assert sorted(os.listdir(tmp_path)) == ["net.pt", "told0", "told1", "train.py"]


def test_ctrl_c_interrupts_all_ranks_at_the_same_line(job: Job, tmp_path: Path) -> None:
    """So that what follows may need all of them, which a forward does."""
    job.process.send_signal(signal.SIGINT)
    assert job.ends() == (0, "")
    (first,), (second,) = (job.told("interrupted", rank) for rank in range(2))
    assert first == second
    assert first.endswith("with 2")
    assert (tmp_path / "net.pt").exists()


@pytest.mark.parametrize("job", [TORCHRUN], indirect=True, ids=["torchrun"])
def test_a_signal_to_one_rank_reaches_all(job: Job, tmp_path: Path) -> None:
    """Under torchrun, which ends at a signal that it doesn't know."""
    pid = int(job.told("step", 1)[0].split()[0])
    os.kill(pid, signal.SIGUSR1)
    assert job.ends()[0] == 1, "torchrun's for any"
    (first,), (second,) = (job.told("saved", rank) for rank in range(2))
    assert first == second
    assert (tmp_path / "net.pt").exists()


def test_where_no_exchange_comes_each_rank_handles_it_by_itself(warm: Warm, tmp_path: Path) -> None:
    body = """
        from dp2ddp_runtime.ranks import signals
        signals._ALONE_AFTER = 0.5
        ddp.setup(timeout=60)
        ddp.barrier()
        try:
            with ddp.own_files(), open(f"busy{ddp.rank()}", "w"):
                time.sleep(100)
        except KeyboardInterrupt:
            print(ddp.gather(ddp.rank()))
        """
    with warm.started(write(tmp_path, body), cwd=tmp_path, forked=True) as started:
        for rank in range(2):
            started.wait_for(tmp_path / f"busy{rank}")
        started.process.send_signal(signal.SIGINT)
        done = started.wait()
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1]\n", "")


def test_a_late_copy_of_a_signal_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(signals, "_handlers", {signal.SIGUSR1: lambda number, frame: ran.append(number)})
    monkeypatch.setattr(signals, "store", lambda: "one")
    monkeypatch.setattr(signals, "_handled", {})
    signals.handle([[], [signal.SIGUSR1]])  # another rank had it
    signals._note(signal.SIGUSR1, None)
    assert (ran, signals.noted()) == ([signal.SIGUSR1], [])
    monkeypatch.setattr(signals, "_COPIES_WITHIN", 0)
    signals._note(signal.SIGUSR1, None)
    assert signals.noted() == [signal.SIGUSR1]
    signals.handle([signals.noted(), []])
    assert (ran, signals.noted()) == ([signal.SIGUSR1] * 2, [])


def test_timers_children_and_errors_are_each_process_s_own() -> None:
    # (Some numbers have no name on Python 3.9.)
    passed_on = {each.name for each in signal.Signals if each in signals.FROM_OUTSIDE}
    assert {"SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"} <= passed_on
    assert not {"SIGKILL", "SIGSTOP", "SIGCHLD", "SIGALRM", "SIGSEGV", "SIGPIPE", "SIGWINCH"} & passed_on
