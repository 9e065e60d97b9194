"""`quiet()`: nothing reaches the terminal or a log file, and everything still counts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
import builtins, contextlib, io, logging, logging.handlers, os, sys, warnings
from tqdm import tqdm, trange
early = logging.getLogger("early")
early.addHandler(logging.StreamHandler())
from dp2ddp_runtime.quiet import quiet
print("before")
quiet()
print("printed")
print("to stderr", file=sys.stderr)
print("to stdout", file=sys.__stdout__)
sys.stdout.write("written")
os.system("echo from a child process")
early.error("logged")
logging.basicConfig(filename="log.txt", filemode="w")
logging.error("logged to a file")
logging.handlers.RotatingFileHandler("rotated.txt", mode="w", maxBytes=10).close()
warnings.warn("warned")
breakpoint()
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
sys.stderr.write("the end")
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


def test_quiet(tmp_path: Path) -> None:
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm/std.py").write_text(TQDM)
    (tmp_path / "tqdm/__init__.py").write_text("from .std import tqdm, trange\n")
    for name in ("log.txt", "rotated.txt"):
        (tmp_path / name).write_text("rank 0's")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "before\n", "the end")
    assert [(tmp_path / name).read_text() for name in ("log.txt", "rotated.txt")] == ["rank 0's"] * 2
