"""`setup`, with real processes: one plain start and one of torchrun's, at each of which several tests look."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from starts import TORCHRUN, Done, Warm, start, write

ARGUMENTS = ["two words", 'a "quote"', "it's", "--x=$HOME", ""]
PLAIN = """
    import logging, random, warnings
    import torch.distributed as dist
    counted = ddp.device_count()
    print("before")
    os.system("echo before, from a child process")
    size = os.popen("stty size 2>&1").read().split()  # as modules do while they are imported
    class Writer:
        def __init__(self, name): os.write(2, f"made {name}\\n".encode())
        def write(self): os.write(2, b"written\\n")
    early = ddp.main_only(Writer)("early")
    os.chdir("/")  # the ranks start where this process started, all the same
    ddp.setup(seed=3, timeout=60)
    ddp.setup()
    early.write()
    print("devices", counted, ddp.device_count())
    print("one hash", os.environ["PYTHONHASHSEED"].isdigit(), "launched", "RANK" in os.environ)
    print("argv", sys.argv[1:], sys.flags.quiet, sys.warnoptions, sys._xoptions, __name__, __spec__.name)
    print("world", ddp.rank(), ddp.local_rank(), ddp.world_size(), ddp.device(), ddp.is_main())
    print("threads", os.environ["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2)))
    print("to stderr", file=sys.stderr)
    logging.getLogger("x").error("logged")
    warnings.warn("warned")
    os.system("echo from a child process")

    try:
        typed = input()
    except EOFError:
        typed = None  # rather than to take away what is typed for rank 0
    size.append(os.get_terminal_size(0).columns)
    os.write(2, f"terminal {ddp.rank()} {sys.stdin.isatty()} {size} {typed}\\n".encode())

    drawn = torch.stack([torch.rand(1)[0], torch.tensor([random.Random().random(), hash("a string") % 1000.0]).sum()])
    ours = drawn.clone()
    drawn = ddp.broadcast(drawn)
    every = sum(ddp.gather(torch.tensor([float(torch.equal(drawn, ours)), 1.0])))
    ddp.barrier()
    print("agree", every.tolist(), dist.is_initialized(), sorted(name for name in os.environ if "RANK" in name))
    print("imported the compiler", "torch._dynamo" in sys.modules)
    """
LAUNCHED = """
    from torch.utils.data import DataLoader
    if __name__ == "__main__":
        counted = ddp.device_count()
        print("before")
        os.system("echo before, from a child process")
    ddp.setup(init_method="tcp://127.0.0.1:" + sys.argv[1])
    ddp.setup()
    class Squares:
        def __len__(self): return 4
        def __getitem__(self, i): return torch.tensor([i * i, os.getpid(), ddp.world_size()])
    if __name__ == "__main__":
        print("devices", counted, ddp.device_count())
        got = next(iter(DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context="spawn")))
        assert got[:, 0].tolist() == [0, 1, 4, 9]
        assert got[0, 1] != os.getpid() and got[0, 2] == 1
        net = torch.nn.Linear(2, 1)
        if ddp.device_count() > 2:
            net = ddp.wrap_model(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        ddp.barrier()
        print("fine", ddp.world_size())
    """


class Observed(NamedTuple):
    """A script and what its one run left."""

    script: Path
    done: Done

    def line(self, text: str) -> int:
        """The number of the script's line that begins with `text`, from 1."""
        lines = self.script.read_text().splitlines()
        return 1 + next(number for number, line in enumerate(lines) if line.startswith(text))

    def after(self, first: str) -> list[str]:
        """The lines on standard error that begin with the word `first`, without it."""
        return [line.partition(" ")[2] for line in self.done.stderr.splitlines() if line.split(" ")[0] == first]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """`python -m pkg.train ARGUMENTS` in a terminal of 100 columns, where somebody types."""
    if sys.platform == "win32":
        pytest.skip("needs a pseudo-terminal")
    folder = tmp_path_factory.mktemp("plain")
    write(folder, "", "pkg/__init__.py")
    script = write(folder, PLAIN, "pkg/train.py")
    options = ("-q", "-W", "default", "-X", "faulthandler", "-m", "pkg.train")
    keyboard, terminal = os.openpty()
    try:
        subprocess.run(["stty", "rows", "30", "cols", "100"], stdin=terminal, check=True)
        os.write(keyboard, b"typed\n")
        done = start(*options, *ARGUMENTS, cwd=folder, stdin=terminal, env={"PYTHONHASHSEED": "random"})
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == 0, done.stderr
    return Observed(script, done)


@pytest.fixture(scope="module")
def launched(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """torchrun, with an address at which the ranks meet."""
    script = write(tmp_path_factory.mktemp("launched"), LAUNCHED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = warm.start(*TORCHRUN, script, port, nproc=None, env={"PYTHONHASHSEED": "random"}, forked=True)
    assert done.returncode == 0, done.stderr
    return Observed(script, done)


def test_what_comes_before_setup_is_printed_once_and_counts_the_job_s_devices(
    plain: Observed, launched: Observed
) -> None:
    for run in (plain, launched):
        assert run.done.stdout.splitlines()[:3] == ["before", "before, from a child process", "devices 2 2"]
        assert run.done.stdout.count("before") == 2


def test_plain_start_repeats_the_command(plain: Observed) -> None:
    assert plain.done.stdout.splitlines()[3:] == [
        "one hash True launched False",
        f"argv {ARGUMENTS} 1 ['default'] {{'faulthandler': True}} __main__ pkg.train",
        "world 0 0 2 cpu True",
        "threads True",
        "from a child process",
        "agree [2.0, 2.0] False []",
        "imported the compiler False",  # which takes more than a second
    ]


def test_one_rank_is_heard(plain: Observed) -> None:
    stderr = plain.done.stderr
    assert [stderr.count(word) for word in ("to stderr", "logged", "UserWarning: warned")] == [1, 1, 1]


def test_what_a_class_makes_before_setup_is_rank_0_s(plain: Observed) -> None:
    assert (plain.done.stderr.count("made early"), plain.done.stderr.count("written")) == (1, 1)


def test_all_ranks_see_the_terminal_and_rank_0_reads_from_it(plain: Observed) -> None:
    assert sorted(plain.after("terminal")) == [
        "0 True ['30', '100', 100] typed",
        "1 True ['30', '100', 100] None",
    ]


def test_ranks_that_all_do_the_same_work_are_told_once(launched: Observed) -> None:
    line = launched.line("    if ddp.device_count() > 2:")
    told = f"no model is wrapped, so each of the 2 ranks does all of the work; see train.py:{line}"
    assert launched.done.stderr.count(told) == 1


def test_torchrun_and_a_worker_that_imports_the_script_again(launched: Observed) -> None:
    assert launched.done.stdout.splitlines()[3:] == ["fine 2"]


def test_strings_that_each_rank_hashes_by_itself_are_told_once(launched: Observed) -> None:
    assert launched.done.stderr.count("each rank hashes strings with a seed of its own") == 1
    assert f"{launched.script}:{launched.line('ddp.setup(init_method=')}: UserWarning" in launched.done.stderr


def test_what_is_printed_into_a_file_is_complete_and_in_order(tmp_path: Path) -> None:
    """Through an output of the script's own, which keeps a copy and never flushes; and a rank fails."""
    body = """
        class Tee:
            def __init__(self): self.terminal, self.copy = sys.stdout, []
            def write(self, text): self.terminal.write(text), self.copy.append(text)
        sys.stdout = Tee()
        print("before")
        ddp.setup()
        print("rank", ddp.rank())
        ddp.barrier()
        raise ValueError
        """
    done = start(write(tmp_path, body), env={"PYTHONUNBUFFERED": ""})
    assert (done.returncode, done.stdout) == (1, "before\nrank 0\n")
    assert "AttributeError" not in done.stderr
