"""Handlers that the ranks don't reach together: of exceptions, and of signals."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_HEAD = """
import sys
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
loader = DataLoader(data, batch_size=16)
net = nn.DataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def train():
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

def test():
    right = 0
    for x, y in loader:
        right += (net(x).argmax(1) == y).sum().item()
    return right

"""
#: The script's end, and whether its handler is noted.
HANDLERS = [
    ("try:\n    train()\nexcept MemoryError:\n    print('stopped')\n    torch.save(net, 'x.pt')\n", False),
    ("try:\n    train()\nexcept MemoryError:\n    print('stopped')\nprint(test())\n", True),
    ("try:\n    train()\nexcept MemoryError:\n    print(test())\n    raise\n", True),
    ("try:\n    train()\nexcept MemoryError:\n    print(net.forward(data[0]))\n", True),
    ("call = net.forward\ntry:\n    call(data[0])\nexcept MemoryError:\n    print(call(data[0]))\n", True),
    ("try:\n    net.cpu()\nexcept MemoryError:\n    print(net.module.forward(data[0]))\n", False),
    ("try:\n    train()\nexcept MemoryError:\n    print('stopped')\n    raise\nprint(test())\n", False),
    ("try:\n    train()\nexcept (ValueError, MemoryError):\n    sys.exit(1)\nprint(test())\n", False),
    ("for e in range(3):\n    try:\n        train()\n    except RuntimeError:\n        continue\n", True),
    ("for e in range(3):\n    try:\n        train()\n    except:\n        break\n", False),
    ("while True:\n    try:\n        train()\n    except:\n        if e:\n            continue\n        raise\n", True),
    ("try:\n    train()\nexcept:\n    if sys.argv:\n        raise\n    else:\n        sys.exit()\ntest()\n", False),
    ("for e in range(3):\n    try:\n        train()\n    except Exception:\n        break\n    test()\n", False),
    ("for e in range(3):\n    try:\n        train()\n    except Exception:\n        break\ntest()\n", True),
    ("def main():\n    try:\n        train()\n    except MemoryError:\n        return\nmain()\ntest()\n", True),
    ("def main():\n    try:\n        train()\n    except MemoryError:\n        return\ntest()\nmain()\n", False),
    ("try:\n    train()\nexcept StopIteration:\n    test()\n", False),
    ("try:\n    import apex\nexcept Exception:\n    apex = None\ntrain()\n", False),
    ("try:\n    train()\nexcept KeyboardInterrupt:\n    print(test())\n    raise\n", False),
]


def _convert(text: str) -> Conversion:
    return convert_source(_HEAD + text, "train.py", Options())


@pytest.mark.parametrize(("end", "noted"), HANDLERS)
def test_handlers_that_go_on_are_noted(end: str, noted: bool) -> None:
    conversion = _convert(end)
    lines = [note.span.start.line for note in conversion.notes if note.rule == "DDP020"]
    expected = 1 + next(i for i, line in enumerate((_HEAD + end).splitlines()) if line.strip().startswith("except"))
    assert lines == [expected] * noted


_REPORTED = """
import visdom
from visdom import VisdomError
vis = visdom.Visdom()
for x, y in loader:
    out = net(x)
    try:
        vis.line(out)
        print(out.sum())
    except {kind}:
        {then}
"""


@pytest.mark.parametrize(
    ("kind", "then", "noted"),
    [
        ("VisdomError", "pass", True),
        ("(OSError, VisdomError)", "continue", True),
        ("Exception", "print('no server')", True),
        ("VisdomError", "raise", False),
    ],
)
def test_a_writer_s_error_in_a_training_loop_is_rank_0_s(kind: str, then: str, noted: bool) -> None:
    notes = _convert(_REPORTED.format(kind=kind, then=then)).notes
    assert [note.rule for note in notes if note.rule == "DDP020"] == ["DDP020"] * noted


def test_a_writer_s_error_elsewhere_parts_nobody() -> None:
    text = "import wandb\ntry:\n    wandb.init()\nexcept Exception:\n    print('no wandb')\ntrain()\n"
    assert not [note for note in _convert(text).notes if note.rule == "DDP020"]


@pytest.mark.parametrize(
    ("target", "noted"),
    [("net", True), ("test", True), ("lambda: print(1)", False), ("print", False), ("other", False)],
)
def test_threads_that_call_a_wrapped_model_are_noted(target: str, noted: bool) -> None:
    body = f"import threading\ndef other():\n    print(1)\nthreading.Thread(target={target}).start()\n"
    notes = convert_source(_HEAD + body, "train.py", Options()).notes
    assert ["thread calls a wrapped model" in note.what for note in notes] == [True] * noted


_QUEUE = """
import queue, threading
class Reader(threading.Thread):
    def __init__(self, batches, out):
        super().__init__()
        self.batches, self.out = batches, out
    def run(self):
        for x in self.batches:
            self.out.put(x)
def read(out):
    out.put(torch.ones(8, 4))
q, words = queue.Queue(8), queue.Queue()
for _ in range(2):
    {started}.start()
{model}
"""


@pytest.mark.parametrize(
    ("started", "model", "noted"),
    [
        ("Reader(torch.ones(2, 8, 4), q)", "while True:\n    x, y = q.get()\n    net(x)", True),
        ("threading.Thread(target=read, args=(q,))", "net(q.get_nowait())", True),
        ("threading.Thread(target=read, args=(words,))", "net(q.get_nowait())", False),
        ("threading.Thread(target=lambda: 0)", "Reader(torch.ones(2, 8, 4), q).start()\nnet(q.get())", False),  # one
        ("Reader(torch.ones(2, 8, 4), words)", "net(q.get())\nprint(words.get())", False),
    ],
)
def test_a_queue_of_batches_that_several_threads_fill_is_noted(started: str, model: str, noted: bool) -> None:
    done = _convert(_QUEUE.format(started=started, model=model))
    assert ["several threads" in note.what for note in done.notes if note.rule == "DDP020"] == [True] * noted


_SIGNALS = """
import os
import signal
import subprocess
import sys
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))

def requeue():
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])

def handler(number, frame):
    torch.save(net.state_dict(), "last.pt")
"""
TRAIN = "for _ in range(9):\n    net(torch.randn(8, 4)).sum().backward()\n"


@pytest.mark.parametrize(
    ("body", "line", "noted"),
    [
        ("    sys.exit(0)\nsignal.signal(signal.SIGUSR1, handler)\n", "", None),
        ("    os.system('sync')\n", "", None),
        (
            "    os.system('sync')\nsignal.signal(signal.SIGUSR1, handler)\n",
            "os.system('sync')",
            "this command as often",
        ),
        ("signal.signal(signal.SIGALRM, handler)\n", "signal.signal", "each rank has a timer of its own"),
    ],
)
def test_what_each_rank_would_run_by_itself(body: str, line: str, noted: str | None) -> None:
    text = _SIGNALS + body + TRAIN
    notes = [note for note in convert_source(text, "train.py", Options()).notes if note.rule == "DDP024"]
    assert len(notes) == bool(noted)
    for note in notes:
        assert noted is not None
        assert noted in note.what
        assert text.splitlines()[note.span.start.line - 1].strip().startswith(line)


def test_a_script_without_dataparallel_keeps_its_handlers_to_itself() -> None:
    text = _SIGNALS.replace("nn.DataParallel", "") + "    os.system('sync')\nsignal.signal(signal.SIGUSR1, handler)\n"
    assert not convert_source(text, "train.py", Options()).notes
