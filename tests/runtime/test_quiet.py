"""`quiet()`: nothing reaches the terminal or a log file, and everything still counts."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
from collections import Counter
from pathlib import Path

import pytest
from forks import WORKERS_OF_FORKS
from starts import Warm, write

SCRIPT = """
import builtins, contextlib, io, logging, logging.handlers, os, pdb, sys, warnings
from tqdm import tqdm, trange
early = logging.getLogger("early")
early.addHandler(logging.StreamHandler())
from dp2ddp_runtime.launch.quiet import quiet
from sys import stderr
class Bar:
    file = sys.stderr
    def draw(self):
        print("a bar of a package that keeps the stream", file=self.file)
class Logger:
    # The script's own stream, which gives nothing back.
    def __init__(self, console):
        self.console = console
    def write(self, text):
        self.console.write(text)
    def flush(self):
        self.console.flush()
print("before")
sys.stdout = Logger(sys.stdout)
quiet()
Bar().draw()
stderr.write("kept")
print("printed")
print("to stderr", file=sys.stderr)
print("to stdout", file=sys.__stdout__)
sys.stdout.write("written")
os.system("echo from a child process")
early.error("logged")
logging.basicConfig(filename="log.txt", filemode="w")
logging.error("logged to a file")
rotating = logging.handlers.RotatingFileHandler("rotated.txt", mode="w", maxBytes=10, backupCount=2)
early.addHandler(rotating)
early.error("longer than ten bytes")
rotating.doRollover()
rotating.close()
warnings.warn("warned")
breakpoint()
pdb.set_trace()
bar = tqdm(range(3), desc="bar")
assert list(bar) == [0, 1, 2]
by_hand = tqdm(None, "by hand", 5, True, sys.stderr)
by_hand.update(5)
assert by_hand.n == 5
by_hand.close()
tqdm.write("through tqdm")
tqdm.write("through tqdm", file=sys.stderr)
for _ in trange(2, file=sys.stdout): pass

# What the script itself captures or writes is its own business.
captured = io.StringIO()
with contextlib.redirect_stdout(captured):
    print("captured")
    tqdm.write("so is this")
print("mine", file=captured)
tqdm.write("bar", file=captured)
assert captured.getvalue() == "captured\\nso is this\\nmine\\nbar\\n", captured.getvalue()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("seen")
assert len(caught) == 1
sys.stderr.write("to stderr")
sys.__stderr__.write("the end")
"""


COUNTS = """
import logging, logging.handlers, sys, warnings
from dp2ddp_runtime.launch.quiet import quiet

class Counted:
    times = 0
    def __str__(self):
        Counted.times += 1
        return "text"
    __repr__ = __str__

class CountedWarning(UserWarning, Counted):
    __str__ = Counted.__str__

class Own(logging.Handler):
    def emit(self, record):
        sys.stderr.write(self.format(record))

def times(function):
    before = Counted.times
    function()
    return Counted.times - before

warnings.simplefilter("always", UserWarning)
log, memory, x = logging.getLogger("x"), logging.handlers.MemoryHandler(2, target=logging.StreamHandler()), Counted()
log.setLevel(logging.INFO)
for handler in (logging.StreamHandler(), Own(logging.ERROR), logging.FileHandler("log.txt")):
    log.addHandler(handler)
log.handlers[-1].addFilter(lambda record: record.msg is x or "filtered" not in record.msg)
buffered = logging.getLogger("x.buffered")
buffered.addHandler(memory)
buffered.propagate = False

def all_times():
    return [times(function) for function in (
        lambda: log.debug("%s", x),
        lambda: log.info(x),
        lambda: log.info("filtered %s", x),
        lambda: log.error("%s %s", x, x),
        lambda: log.info("%d", x),
        lambda: logging.getLogger("without a handler").warning(x),
        lambda: buffered.info(x),
        lambda: buffered.info(x),
        lambda: print(x, x),
        lambda: print(x, file=sys.stderr),
        lambda: warnings.warn(CountedWarning()),
        lambda: log.isEnabledFor(logging.INFO) and str(x),
    )]

aloud = all_times()
quiet()
sys.__stderr__.write("quiet from here on")
assert (aloud, log.isEnabledFor(logging.DEBUG)) == (all_times(), False), (aloud, all_times())
assert aloud[:10] == [0, 2, 1, 6, aloud[4], 1, 0, 2, 2, 1], aloud
assert min(aloud[4], *aloud[10:]) > 0, aloud
"""


# As much of tqdm as is silenced, with its arguments in their places; tests must not need the real one.
TQDM = """
import sys
class tqdm:
    def __init__(self, iterable=None, desc=None, total=None, leave=True, file=None, ncols=None, **rest):
        self.iterable, self.n, self.fp = iterable, 0, file or sys.stderr
        self.fp.write("a bar")
    def __iter__(self):
        return iter(self.iterable)
    def update(self, n=1):
        self.n += n
        self.fp.write("moves")
    def close(self):
        self.fp.write("done")
    @classmethod
    def write(cls, s, file=None, end="\\n", nolock=False):
        (file or sys.stdout).write(s + end)
def trange(*args, **kwargs):
    return tqdm(range(*args), **kwargs)
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), *sys.path]))}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_quiet(tmp_path: Path) -> None:
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm/std.py").write_text(TQDM)
    (tmp_path / "tqdm/__init__.py").write_text("from .std import tqdm, trange\n")
    for name in ("log.txt", "rotated.txt"):
        (tmp_path / name).write_text("rank 0's")
    done = run(SCRIPT, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "before\n", "the end")
    assert [(tmp_path / name).read_text() for name in ("log.txt", "rotated.txt")] == ["rank 0's"] * 2
    assert not list(tmp_path.glob("rotated.txt.*"))


def test_what_is_formatted_aloud_is_formatted_in_silence(tmp_path: Path) -> None:
    done = run(COUNTS, tmp_path)
    assert (done.returncode, done.stderr.partition("quiet from here on")[2]) == (0, ""), done.stderr


def test_error_in_a_thread_is_heard(tmp_path: Path) -> None:
    script = """
import threading
from dp2ddp_runtime.launch.quiet import quiet
quiet()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
"""
    assert run(script, tmp_path).stderr.count("ZeroDivisionError") == 1


TERMINAL = """
import array, os, shutil, struct, sys
from fcntl import ioctl
from termios import TIOCGWINSZ
import dp2ddp_runtime as ddp
ddp.setup()
assert [sys.stdout.isatty(), sys.stderr.isatty()] == [True, False], ddp.rank()
assert struct.unpack("4H", ioctl(sys.__stdout__, TIOCGWINSZ, "\\0" * 8))[:2] == (41, 93), ddp.rank()
size = array.array("H", [0] * 4)
assert (ioctl(1, TIOCGWINSZ, size, True), size[1]) == (0, 93), ddp.rank()
assert os.get_terminal_size() == os.get_terminal_size(1) == shutil.get_terminal_size() == (93, 41), ddp.rank()
try:
    os.get_terminal_size(2)
except OSError:
    print("alike")
"""


def test_whether_output_is_a_terminal_is_the_same_on_all_ranks(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TERMINAL)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 41, 93, 0, 0))
    unset = {"COLUMNS": "", "LINES": ""}
    done = warm.start(script, env=unset, stdout=theirs, forked=True)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert os.read(ours, 100) == b"alike\r\n"
    os.close(ours)


SAMPLES = """
import logging, sys, threading, time
from torch.utils.data import DataLoader, Dataset, default_collate
import dp2ddp_runtime as ddp
ddp.setup()
workers = int(sys.argv[1])
logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
print("begins\\n", end="")

class Data(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        print(f"sample {index}\\n", end="")
        sys.stderr.write(f"error {index}\\n")
        logging.info("logged %d", index)
        time.sleep(0.01)
        return index

def collate(samples):
    print("batch\\n", end="")
    return default_collate(samples)

def talk():
    while not done:
        sys.stdout.write(f"thread {next_number()}\\n")
        time.sleep(0.001)

numbers, done = iter(range(10 ** 6)), False
next_number = numbers.__next__
thread = threading.Thread(target=talk)
if not workers:
    thread.start()
for loader in (ddp.shard_loader(DataLoader(Data(), 3, num_workers=workers)),
               ddp.shard_loader(DataLoader(Data(), 3, num_workers=workers, collate_fn=collate), rows=True)):
    for epoch in range(2):
        for batch in loader:
            print(f"step {batch.tolist()}\\n", end="")
done = True
if not workers:
    thread.join()
print("ends\\n", end="")
"""


@pytest.mark.parametrize(("n", "workers"), [(3, 0), (2, 2), (3, 1)])
def test_what_samples_print_is_shown_once(warm: Warm, tmp_path: Path, n: int, workers: int) -> None:
    """By the rank that loads them, and by none of those that would stand idle; and nothing else of its output."""
    script = tmp_path / "train.py"
    script.write_text(SAMPLES)
    done = warm.start(script, workers, nproc=n, forked=WORKERS_OF_FORKS or not workers)
    assert done.returncode == 0, done.stderr
    told = Counter(line for line in done.stdout.splitlines() if not line.startswith("thread"))
    steps = [f"step {[*range(start, min(start + 3, 10))]}" for start in range(0, 10, 3)]
    samples = [f"{what} {index}" for what in ("sample", "logged") for index in range(10)]
    assert told == Counter({"begins": 1, "ends": 1, "batch": 8, **dict.fromkeys([*steps, *samples], 4)})
    assert Counter(done.stderr.splitlines()) == Counter({f"error {index}": 4 for index in range(10)})
    threads = [line for line in done.stdout.splitlines() if line.startswith("thread")]
    assert threads == [f"thread {number}" for number in range(len(threads))]


_BACKEND = """
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
opened = []
class FigureManager(FigureManagerBase):
    def __init__(self, canvas, num):
        super().__init__(canvas, num)
        self.window = self
        opened.append(num)
    def show(self):
        pass
class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
"""
_WINDOWS = """
import window
def train():
    import matplotlib
    if {!r}:
        matplotlib.use("module://window")
    import matplotlib.pyplot as plt
    plt.ion()
    figure, axes = plt.subplots()
    axes.plot([1, 2])
    plt.draw()
    plt.pause(0.01)
    figure.canvas.manager.window.show()
    plt.show()
    print(ddp.gather(len(window.opened)))
"""


@pytest.mark.parametrize("early", ["import matplotlib", "import matplotlib.pyplot as plt; plt.ion()", ""])
def test_windows_are_rank_0s(warm: Warm, tmp_path: Path, early: str) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "window.py").write_text(_BACKEND)
    script = write(tmp_path, f"{_WINDOWS.format(early)}\n{early}\nddp.setup()\ntrain()\n")
    done = warm.start(script, env={"MPLBACKEND": "module://window"}, cwd=tmp_path, forked=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 0]\n", "")
