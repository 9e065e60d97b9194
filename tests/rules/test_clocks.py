"""Dates, times as text and random names are rank 0's; timers stay, but for seeds."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import datetime, os, random, socket, tempfile, time, uuid
from datetime import datetime as DateTime, timedelta
import numpy as np
import torch, torch.nn as nn
"""
_NET = "net = nn.DataParallel(nn.Linear(4, 2))\n"
_ONLY = Options(select=frozenset({"DDP019"}))

SHARED = {
    "torch.load(f'{DateTime.now():%Y}.pt')": "DateTime.now()",
    "name = time.strftime('%H', time.localtime())": "time.strftime('%H', time.localtime())",
    "name = time.strftime('%H', now)": "time.strftime('%H', now)",
    "now = time.strftime('%H', DateTime.now().timetuple())": "time.strftime('%H', DateTime.now().timetuple())",
    "import cv2\nif cv2.waitKey(1) == 27:\n    exit()": "cv2.waitKey(1)",
    "class Run:\n    name = uuid.uuid4().hex": "uuid.uuid4()",
    "now = time.gmtime()": "time.gmtime()",
    "print(open(time.ctime()))": "time.ctime()",
    "folder = fingerprint(time.ctime())": "time.ctime()",
    "file = open(time.ctime())\nprint(file)": "time.ctime()",
    "def log():\n    now = time.ctime()\n    print(now)\n    return now": "time.ctime()",
    "def log():\n    self.now = now = time.ctime()\n    print(now)": "time.ctime()",
    "def log():\n    global now\n    now = time.ctime()\n    print(now)": "time.ctime()",
    "def log(self):\n    self.now = time.ctime()\n    print(self.now)": "time.ctime()",
    "name = str(int(time.time()))": "time.time()",
    "name = DateTime.fromtimestamp(time.time())": "DateTime.fromtimestamp(time.time())",
    "np.random.seed(int(time.time()) % 1000)": "time.time()",
    "rng = random.Random(os.getpid())": "os.getpid()",
    "seed = time.time_ns()": "time.time_ns()",
    "set_seed(int(time.time()))": "time.time()",
    "fit(net, random_seed=int(time.time()))": "time.time()",
    "parser.add_argument('--seed', type=int, default=int(time.time()))": "time.time()",
    "args.seed = int.from_bytes(os.urandom(4), 'big')": "os.urandom(4)",
}
LEFT = [
    "start = time.time()\nprint(time.time() - start, time.perf_counter(), timedelta(seconds=3), datetime.timedelta(3))",
    "print(time.strftime('%H:%M:%S', time.gmtime(took)), DateTime.fromtimestamp(os.path.getmtime('net.pt')))",
    "print(time.strftime('%H:%M:%S', time.gmtime(time.time() - start)))",
    "start = DateTime.now()\nnet(x)\nprint(DateTime.now() - start)",
    "random.seed()\nnp.random.seed()\ntorch.seed()\nrng = np.random.default_rng()",
    "folder = tempfile.mkdtemp()\nhost = f'{socket.gethostname()}_{os.getpid()}_{id(net)}'",
    "random.seed(3)\ntorch.manual_seed(args.seed)",
    "print('at', str(DateTime.now().strftime('%H')))\nlogger.info('{}'.format(time.ctime()))",
    "self.print_log('at ' + time.ctime())\nlog_string(str(DateTime.now()))",
    "raise Exception('[%s] unknown %s' % (DateTime.now(), name))",
    "now = time.ctime()\nrow = [now, 3]\nprint('%s %d' % tuple(row))",
    "def log():\n    now = time.ctime()\n    start = 'at ' + now\n    end = 'to ' + now\n    print(end)",
    "def log(text):\n    text = time.strftime('[%X] ', time.gmtime()) + text\n    print(text)\n    file.write(text)",
    "import cv2\nif shown:\n    cv2.waitKey(0)",  # whose value nobody uses
]


@pytest.mark.parametrize("text", SHARED)
def test_rank_0_chooses(text: str) -> None:
    new = convert_source(f"{_HEAD}{_NET}{text}\n", "train.py", _ONLY).new_text
    assert new.endswith(f"{_NET}{text.replace(SHARED[text], f'ddp.broadcast({SHARED[text]})')}\n")


@pytest.mark.parametrize("text", LEFT)
def test_what_only_tells_the_time_stays(text: str) -> None:
    conversion = convert_source(f"{_HEAD}{_NET}{text}\n", "train.py", _ONLY)
    assert not conversion.changed
    assert not conversion.notes


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("while time.time() < end:\n    net(x)\nif time.time() - start > 60:\n    stop()\n", [1]),
        ("if args.log and time.monotonic() - last > 5:\n    net(x)\n", [1]),
        ("took = time.time() - start\nprint(took > 5)\nassert time.time() > 0\n", []),
    ],
)
def test_a_clock_that_decides_is_noted_once_a_file(text: str, lines: list[int]) -> None:
    notes = convert_source(_HEAD + _NET + text, "train.py", _ONLY).notes
    assert [note.span.start.line - (_HEAD + _NET).count("\n") for note in notes] == lines


def test_a_module_s_clock_is_rank_0_s_wherever_its_lines_are_called_from() -> None:
    files = {"train.py": f"{_HEAD}import names\n{_NET}", "names.py": "import time\nSTAMP = time.strftime('%H')\n"}
    done = convert_files(files, ["train.py"], Options())
    assert "STAMP = ddp.broadcast(time.strftime('%H'))\n" in done["names.py"].new_text
