"""A job that hangs tells where everyone is, and ends."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from dp2ddp_runtime.base import waiting, world
from dp2ddp_runtime.base.location import located
from dp2ddp_runtime.launch import watchdog
from dp2ddp_runtime.ranks.file_sync import tell
from forks import WORKERS_OF_FORKS
from starts import START, TORCHRUN, Started, Warm, write

SCRIPT = """
    import signal
    way = sys.argv[1]
    ddp.setup(timeout={"backward": 60, "left": 60, "more": 60, "left long ago": 20}.get(way, 9))
    net = ddp.wrap_model(torch.nn.Linear(2, 1))
    def train():
        loss = net(torch.ones(4, 2)).sum()
        loss.backward()
    for step in range(2):
        train()
    if ddp.rank() == 1:
        if way == "loop":
            while True: pass
        if "left" in way:
            sys.exit(0)
        if way == "more":
            train()
        if way == "workers":
            from torch.utils.data import DataLoader
            class Slow(list):
                def __getitem__(self, i):
                    time.sleep(100)
            for _ in DataLoader(Slow([1]), num_workers=1):
                pass
    if way == "left long ago":  # nearly as long as a rank waits for another
        time.sleep(16)
    if "main stopped" in way and ddp.rank() == 0:
        with open(sys.argv[2], "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "backward":
        out = net(torch.ones(4, 2))
        if ddp.rank() == 0:
            net(torch.zeros(4, 2))
        out.sum().backward()
    if way == "nobody writes":
        if ddp.rank() == 0:
            time.sleep(99)
        ddp.save(1, sys.argv[2])
        ddp.load(sys.argv[2])
    if way == "input" and ddp.rank() == 0:
        input()
    if way != "more":
        train()
    print("through")
    """
STILL = "nothing has moved for 9 s"
#: Before torch 2.2, torchrun lets rank 0 host the store; if it is stopped, the others can't ask for it.
STOPPED = STILL if torch.__version__ >= "2.2" else "no other rank can be reached since 9 s"
APART = "the ranks wait for each other in different places"
STEP = ("loss = net(", "waits for ")


class Case(NamedTuple):
    """What is said of a hang: of each rank the beginning of its line in the script, and what it does there."""

    why: str
    rank_0: tuple[str, str]
    rank_1: tuple[str, str]
    launch: tuple[str, ...] = ()


CASES = {
    "loop": Case(STILL, STEP, ("while True", "is at work: while True: pass")),
    "input": Case(STILL, ("input()", "is at work: input()"), STEP),
    "workers": Case(STILL, STEP, ("for _ in DataLoader", "is at work: for _ in DataLoader(")),
    "nobody writes": Case(STILL, ("time.sleep(99)", "is at work: time"), ("ddp.save", "waits for rank 0's ddp.save")),
    "main stopped": Case(STILL, ("", "doesn't answer: it is stopped"), STEP),
    "main stopped, torchrun": Case(STOPPED, ("", "doesn't answer: it is stopped"), STEP, TORCHRUN),
    "backward": Case(APART, ("net(torch.zeros", "waits for "), ("out.sum()", "waits for the gradients of a backward")),
    "left": Case(APART, STEP, ("sys.exit(0)", "has left the script"), TORCHRUN),
    "left long ago": Case(APART, STEP, ("sys.exit(0)", "has left the script")),
    "more": Case(APART, ("its end", "has left the script"), STEP),
}


@pytest.fixture(scope="module")
def hangs(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """All of them at once, as most of what they do is to wait."""
    script = write(tmp_path_factory.mktemp("hangs"), SCRIPT)
    env = {"DP2DDP_STUCK_AFTER": "4", "PYTHONHASHSEED": "0"}
    silent, keyboard = os.pipe()
    with ExitStack() as running:
        started = {}
        for way, case in CASES.items():
            given = (*case.launch, script, way, script.parent / f"{way}.pt")
            forked = way != "workers" or WORKERS_OF_FORKS
            nproc = None if case.launch else 2
            started[way] = running.enter_context(
                warm.started(*given, nproc=nproc, env=env, stdin=silent, forked=forked)
            )
        yield started
    os.close(keyboard)
    os.close(silent)


@pytest.mark.parametrize("way", CASES)
def test_who_hangs_and_where(hangs: dict[str, Started], way: str) -> None:
    why, *ranks, launch = CASES[way]
    lines = (START + textwrap.dedent(SCRIPT)).splitlines()
    if launch and "stopped" in way:  # torchrun asks it to end, and waits for 30 s
        hangs[way].wait_for_error(f"dp2ddp: {why}:")
        os.kill(int(Path(hangs[way].process.args[-1]).read_text()), signal.SIGKILL)
    done = hangs[way].wait()
    assert done.returncode == 1
    assert ("through" in done.stdout) == (way == "more")
    assert done.stderr.count("dp2ddp: a rank has waited for the others") == (why == STILL), done.stderr
    assert done.stderr.count(f"dp2ddp: {why}:") == 1, done.stderr
    assert done.stderr.count("Each rank must run every line") == (why == APART), done.stderr
    last = done.stderr.partition(f"dp2ddp: {why}:")[2]
    for rank, (text, does) in enumerate(ranks):
        if not text and why != STILL:
            continue  # the others know nothing of it
        number = next((n for n, line in enumerate(lines, 1) if line.strip().startswith(text)), 0)
        line = text if text == "its end" else f"train.py:{number}"
        told = {
            "has left the script": f"  rank {rank} has left the script at {line}\n",
            "doesn't answer: it is stopped": f"  rank {rank} doesn't answer: it is stopped",
        }
        expected = re.escape(told[does]) if does in told else rf"  rank {rank} at {line} for \d+ s: {re.escape(does)}"
        assert re.search(expected, last), f"{expected}\n{done.stderr}"
    assert done.stderr.count("Traceback") == bool(launch), "torchrun's own"


def test_a_debugger_on_rank_0_has_the_terminal_and_all_time(warm: Warm, tmp_path: Path) -> None:
    """Longer than the time-out, in which nobody is told anything. (On a busy machine `setup` alone takes a second.)"""
    body = """
        ddp.setup(timeout=4)
        told = "in the script"
        if ddp.is_main():
            breakpoint()
        print("sum", sum(ddp.gather(1)))
        """
    keyboard, terminal = os.openpty()
    with warm.started(write(tmp_path, body), env={"DP2DDP_STUCK_AFTER": "3"}, stdin=terminal, forked=True) as started:
        started.wait_for_output("(Pdb)")
        time.sleep(10)
        os.write(keyboard, b"p told\nc\n")
        done = started.wait(60)
    os.close(keyboard)
    os.close(terminal)
    assert (done.returncode, done.stderr) == (0, "")
    assert "'in the script'" in done.stdout
    assert done.stdout.endswith("sum 2\n")


def test_what_a_rank_told_before_a_debugger_s_end_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 goes on, to its end, before the other rank has told that it does, too."""
    found = torch.distributed.HashStore()
    looks = watchdog._Watchdog(found, stuck_after=1e9)
    ended: list[str] = []
    monkeypatch.setattr(looks, "_end", lambda why, states: ended.append(why))
    monkeypatch.setattr(world, "world_size", lambda: 2)
    for turn, clock, debugs, left in ((1, 10.0, True, False), (2, 10.2, False, True), (3, 9999.0, False, True)):
        monkeypatch.setattr(waiting, "clock", clock)
        there = {"turn": turn, "line": "a.py:1", "does": "", "passed": 0, "polls": 0}
        main = {**there, "for": 0.0, "debugs": debugs, "left": left, "waits": "the others' end" if left else ""}
        other = {**there, "for": 9000.0, "debugs": False, "left": False, "waits": "rank 0"}
        for rank, state in enumerate((main, other)):
            tell(found, f"state{rank}", state)
        looks._judge([])
        assert bool(ended) == (turn == 3)


@pytest.mark.parametrize("given", ["soon", "1 s"])
def test_a_time_that_is_no_number_is_refused(warm: Warm, tmp_path: Path, given: str) -> None:
    done = warm.start(write(tmp_path, "ddp.setup()\n"), env={"DP2DDP_STUCK_AFTER": given}, forked=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"dp2ddp: DP2DDP_STUCK_AFTER must be a number of seconds, not {given!r}\n",
    )


def test_a_device_that_still_waits_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NCCL the host goes on, while the device waits for the other ranks. It isn't asked at once."""
    asked: list[bool] = []
    event = SimpleNamespace(record=lambda stream: None, query=lambda: asked.append(True) or over)
    capturing = over = False
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(waiting, "_sent", None)
    with waiting.Waiting("the gradients of a backward", torch.device("cuda", 0)):
        found = waiting.oldest()
    assert found is not None
    assert waiting.oldest() is None
    assert not asked
    monkeypatch.setattr(waiting, "clock", waiting.clock + 6)
    assert waiting.oldest() is found
    over = True
    assert waiting.oldest() is None
    over, capturing = False, True
    with waiting.Waiting("a collective that is captured", torch.device("cuda", 0)) as captured:
        pass
    assert captured.event is None


def test_a_slow_save_is_named_and_waited_for(warm: Warm, tmp_path: Path) -> None:
    body = """
        ddp.setup(timeout=60)
        class Slow:
            def __reduce__(self):
                time.sleep(5)
                return str, ("saved",)
        ddp.save(Slow(), "net.pt")
        print(ddp.load("net.pt", weights_only=False))
        """
    done = warm.start(write(tmp_path, body), env={"DP2DDP_STUCK_AFTER": "1.5"}, cwd=tmp_path, forked=True)
    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr
    assert done.stderr.count("dp2ddp: a rank has waited for the others for ") == 1, done.stderr
    assert re.search(r"  rank 0 at train\.py:8 for \d+ s: is at work: time\.sleep\(5\)\n", done.stderr)
    assert re.search(r"  rank 1 at train\.py:10 for \d+ s: waits for rank 0's ddp\.save in train\.py:10\n", done.stderr)
    assert done.stderr.endswith("The job goes on when they do, and ends if nothing moves for 60 s.\n")


def test_where_a_thread_stands_is_told_without_its_frames() -> None:
    inside, leave = threading.Event(), threading.Event()

    class Kept:
        """What a function has in a variable, as `json.dump` has a file."""

    def function() -> None:
        kept = Kept()
        refs.append(weakref.ref(kept))
        inside.set()
        leave.wait()

    refs: list[weakref.ref[Kept]] = []
    thread = threading.Thread(target=function)
    thread.start()
    inside.wait()
    lines = watchdog.all_threads()
    leave.set()
    thread.join()
    assert refs[0]() is None, "a frame is held"
    own = [line for line in lines[thread.ident or 0] if line.filename == __file__]
    assert [line.number - function.__code__.co_firstlineno for line in own] == [4]
    assert located(lines[threading.get_ident()]).line.startswith("test_watchdog.py:")
