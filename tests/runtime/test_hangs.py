"""Ranks that fail, leave, wait for each other, or are sent a signal: told once, together, and without a hang."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from starts import Warm, write

HEAD = """ddp.setup()
import signal, time
net = ddp.wrap_model(torch.nn.Linear(8, 3))
x = torch.randn(8, 8)
net(x)
print("at it", flush=True)
is_last = ddp.rank() == 1
"""
TAIL = "\nnet(x)\nprint('end')"
FIRST = 4 + HEAD.count("\n")  # the line behind HEAD


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("if is_last: raise ValueError('boom')", 1, ["rank 1 of 2 failed:", "ValueError: boom"]),
        ("sys.exit(3)", 3, []),
        ("if is_last: raise ValueError('boom')\ntry: net(x)\nexcept RuntimeError: sys.exit()", 1, ["ValueError: boom"]),
        ("if not is_last: sys.exit(3)", 1, ["rank 0 has left the script", "rank 1 at train.py", "waits for"]),
        ("if is_last: os._exit(7)", 7, ["rank 1 ended with exit code 7"]),
        ("if is_last: os.kill(os.getpid(), signal.SIGKILL)", 137, ["rank 1 was ended by signal 9", "out of memory?"]),
        (
            "fails = net.module.register_forward_pre_hook(lambda *_: 1 / 0 if is_last else None)\n"
            "try: net(x)\nexcept ArithmeticError: fails.remove()",
            1,
            [
                "have come apart",
                f"rank 1 at train.py:{FIRST + 3}: the wrapped model (behind ZeroDivisionError: division",
            ],
        ),
        ("x = x if is_last else x + 1", 1, ["differs between the ranks", "ddp.shard_loader"]),
    ],
)
def test_the_end_of_a_rank_is_told_once_and_ends_all(
    warm: Warm, tmp_path: Path, line: str, code: int, told: list[str]
) -> None:
    """Whatever a rank does: rank 0's exit code is the job's, and the reason stands there once."""
    path = write(tmp_path, f"{HEAD}{line}{TAIL}")
    began = time.monotonic()
    done = warm.start(path, forked=True)
    assert done.returncode == code, done.stderr
    for text in told:
        assert text in done.stderr
    assert done.stderr.count("Traceback") <= 1
    assert bool(done.stderr) == bool(told)
    assert "end" not in done.stdout.split()
    assert time.monotonic() - began < 60


def test_others_end_when_rank_0_is_killed(warm: Warm, tmp_path: Path) -> None:
    body = f"{HEAD}print(*ddp.gather(os.getpid()), 'told', flush=True)\ntime.sleep(60)"
    with warm.started(write(tmp_path, body), forked=True) as started:
        started.wait_for_output("told")
        started.process.kill()
        pids = list(map(int, started.wait().stdout.split()[2:4]))
    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_who_waits_and_where_is_told_once_and_the_job_goes_on(warm: Warm, tmp_path: Path) -> None:
    """A rank that takes long, with the text of its line; rank 0 waits for it."""
    path = write(tmp_path, f"{HEAD}if is_last: time.sleep(3)\nnet(x); print('end')")
    done = warm.start(path, forked=True, env={"DP2DDP_STUCK_AFTER": "1"})
    assert (done.returncode, "end" in done.stdout) == (0, True)
    assert done.stderr.count("a rank has waited for the others") == 1
    assert f"rank 0 at train.py:{FIRST + 1}" in done.stderr
    assert f"rank 1 at train.py:{FIRST}" in done.stderr
    assert "is at work: if is_last: time.sleep(3)" in done.stderr


def test_a_rank_that_is_long_before_the_first_wrap_says_where(warm: Warm, tmp_path: Path) -> None:
    slow = "ddp.setup()\nimport time\nif 'DP2DDP_RANK_OF' in os.environ: time.sleep(3)\n"
    path = write(tmp_path, slow + "ddp.wrap_model(torch.nn.Linear(2, 1))")
    done = warm.start(path, forked=True, env={"DP2DDP_STUCK_AFTER": "1"})
    assert done.returncode == 0, done.stderr
    assert "rank 0 at train.py:7" in done.stderr
    assert "is at work: if 'DP2DDP_RANK_OF' in os.environ: time.sleep(3)" in done.stderr


def test_a_job_in_which_nothing_moves_ends(warm: Warm, tmp_path: Path) -> None:
    body = HEAD.replace("ddp.setup()", "ddp.setup(timeout=2)")
    done = warm.start(write(tmp_path, f"{body}if is_last: time.sleep(60)\nnet(x)"), forked=True)
    assert done.returncode == 1
    assert "nothing has moved for 2 s" in done.stderr


LOOP = """
try:
    for step in range(2000):
        net(x)
        time.sleep(0.01)
        if step == 20:
            print("ready", flush=True)
        if got and step > got[0] + 2:
            break
except KeyboardInterrupt:
    print("interrupted", flush=True)
told = ddp.gather([step, got])
print("together", told[0] == told[1], step < 1999)
"""


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGINT, "behind"), (signal.SIGTERM, "before"), (signal.SIGUSR1, "behind")]
)
def test_signals_of_rank_0_are_all_ranks_at_the_same_step(warm: Warm, tmp_path: Path, number: int, when: str) -> None:
    """Ctrl-C, and handlers that the script has set before the wrap or behind it."""
    handler = "got = []\n"
    if number != signal.SIGINT:
        handler += f"signal.signal({int(number)}, lambda *_: got.append(step))\n"
    head = HEAD.replace("net = ", f"{handler}net = ") if when == "before" else HEAD + handler
    with warm.started(write(tmp_path, head + LOOP), forked=True) as started:
        started.wait_for_output("ready")
        started.process.send_signal(number)
        done = started.wait()
    assert done.returncode == 0, done.stderr
    words = ["interrupted"] if number == signal.SIGINT else []
    assert done.stdout.split("\n")[2:-1] == [*words, "together True True"]


def test_a_signal_without_a_handler_ends_the_job(warm: Warm, tmp_path: Path) -> None:
    with warm.started(write(tmp_path, HEAD + "while True: net(x)"), forked=True) as started:
        started.wait_for_output("at it")
        time.sleep(0.3)
        started.process.send_signal(signal.SIGTERM)
        assert started.wait().returncode == -signal.SIGTERM


@pytest.mark.parametrize("what", ["net(x)", "from dp2ddp_runtime.world import all_gather; all_gather(x)"])
def test_rank_0_is_interrupted_where_it_waits_for_a_rank_that_does_not_come(
    warm: Warm, tmp_path: Path, what: str
) -> None:
    """In a message, and in a collective of C++, where no handler of Python's runs."""
    soon = "from dp2ddp_runtime.signals import signals; signals.alone_after = 0.5"
    body = f"{soon}\nif is_last: time.sleep(60)\nprint('ready', flush=True)\n{what}"
    with warm.started(write(tmp_path, HEAD + body), forked=True) as started:
        started.wait_for_output("ready")
        time.sleep(0.3)
        began = time.monotonic()
        started.process.send_signal(signal.SIGINT)
        done = started.wait()
    assert done.returncode == 130
    assert "nterrupt" in done.stderr
    assert time.monotonic() - began < 15


KEEPS = """
from dp2ddp_runtime.signals import signals
signals.alone_after = 0.5
torch.save("old", {path!r})
print("ready", flush=True)
try:
    time.sleep(2)
except KeyboardInterrupt:
    torch.save("new", {path!r})
    print("saved", flush=True)
"""


def test_what_an_interrupted_script_saves_is_saved(warm: Warm, tmp_path: Path) -> None:
    """Rank 0 is interrupted alone, and waits for another rank before it overwrites a file."""
    path = str(tmp_path / "last.pt")
    with warm.started(write(tmp_path, HEAD + KEEPS.format(path=path)), forked=True) as started:
        started.wait_for_output("ready")
        started.process.send_signal(signal.SIGINT)
        done = started.wait()
    assert "saved" in done.stdout, done.stderr
    assert "interrupted at" not in done.stderr
    assert torch.load(path) == "new"


def test_a_handler_that_was_asked_for_and_is_put_back_runs(warm: Warm, tmp_path: Path) -> None:
    """`signal.getsignal`, and `signal.signal` by a name from above `setup`; an event loop's signals stay its own."""
    body = """
before = signal.getsignal(signal.SIGINT)
signal.signal(signal.SIGINT, lambda *_: print("never"))
signal.signal(signal.SIGINT, before)
got = []
set_handler(signal.SIGTERM, lambda *_: got.append(1))
os.kill(os.getpid(), signal.SIGTERM) if not is_last else None
for _ in range(3): net(x)
print(ddp.gather(len(got)), flush=True)
os.kill(os.getpid(), signal.SIGINT)
for _ in range(3): net(x)
"""
    done = warm.start(write(tmp_path, f"from signal import signal as set_handler\n{HEAD}{body}"), forked=True)
    assert "[1, 1]" in done.stdout, done.stderr
    assert "never" not in done.stdout
    assert done.stderr.count("KeyboardInterrupt") == 1
