"""What a person has to look at, once for each kind and file: handlers, threads, timers, hooks."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import functools, signal, threading
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
net = nn.DataParallel(nn.Linear(4, 2))
loader = DataLoader(data, 4)
def evaluate():
    return sum(net(x) for x in loader)
def show():
    print(1)
def count(module, inputs, output):
    global total
    total += 1
def put(name, module, inputs, output):
    kept[name] = output
def look(module, inputs, output):
    found = []
    found.append(output.shape)
    print(found)
class Held:
    def __call__(self, *seen):
        self.seen = seen
    def add(self, *seen):
        self.all.append(seen)
"""


_BOUND = "threading.Thread(target=own.it.go).start()\nclass Own:\n    def go(self):\n        "


def noted(text: str, head: str = _HEAD) -> list[tuple[str, int]]:
    """The notes on what stands behind `_HEAD`: rules, and lines from 1 there."""
    notes = convert_source(head + text, "train.py", Options()).notes
    return [(note.rule, note.span.start.line - len(head.splitlines())) for note in notes]


HANDLERS = {
    "except torch.cuda.OutOfMemoryError:\n    pass": True,
    "except RuntimeError as error:\n    if 'out of memory' in str(error):\n        torch.cuda.empty_cache()": True,
    "except RuntimeError as error:\n    print('out of memory')\n    raise": False,
    "except KeyboardInterrupt:\n    torch.save(net, 'x.pt')": False,
    "except ValueError:\n    pass": False,
}


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_that_goes_on_without_memory_is_noted(handler: str) -> None:
    tried = f"try:\n    evaluate()\n{handler}\n"
    assert noted(tried * 2) == [("DDP020", 3)] * HANDLERS[handler]
    deep = f"for x in loader:\n{tried}".replace("\n", "\n    ")
    assert noted(f"{deep}\n{tried}") == [("DDP020", 4)] * HANDLERS[handler]  # not the one that is less deep


@pytest.mark.parametrize(
    ("thread", "is_noted"),
    [
        ("threading.Thread(target=net).start()", True),
        ("threading.Thread(None, evaluate).start()", True),
        ("threading.Timer(3, evaluate).start()", True),
        ("threading.Thread(target=lambda: net(x)).start()", True),
        ("class Own(threading.Thread):\n    def run(self):\n        self.model = net(x)", True),
        ("class Own(threading.Thread):\n    def run(self):\n        print(1)", False),
        (f"{_BOUND}self.fit()\n    def fit(self):\n        loss(x, self.net)", True),
        (f"{_BOUND}self.saver.fit()\n    def fit(self):\n        loss(x, self.net)", False),
        (f"{_BOUND}self.save()\n    def save(self):\n        self.net.state_dict()", False),
        ("threading.Thread(target=lambda: print(1)).start()", False),
        ("threading.Thread(target=show).start()", False),
        ("threading.Thread(target=elsewhere).start()", False),
    ],
)
def test_threads_that_call_a_wrapped_model_are_noted(thread: str, is_noted: bool) -> None:
    assert noted(thread) == [("DDP020", 1)] * is_noted


def test_a_timer_is_noted_and_other_signals_are_not() -> None:
    assert noted("signal.signal(signal.SIGUSR1, show)\nsignal.alarm(60)\nsignal.alarm(60)\n") == [("DDP020", 2)]


HOOKS = {
    "net.module.register_forward_hook(count)": True,
    "net.module.register_forward_hook(functools.partial(put, 'fc'))": True,
    "net.module.register_full_backward_hook(lambda m, i, o: kept.append(o))": True,
    "net.module.register_forward_hook(Held())": True,
    "net.module.register_forward_hook(look)": False,
    "net.module.register_forward_hook(lambda m, i, o: o * 2)": False,
    "net.register_forward_hook(count)": False,  # on whole batches
    "net.module.register_forward_hook(elsewhere)": False,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_keeps_is_noted(hook: str) -> None:
    assert noted(hook) == [("DDP025", 1)] * HOOKS[hook]
    assert noted(f"{hook}\n{hook}\n") == [("DDP025", 1)] * HOOKS[hook]
    assert noted(f"def flops(net):\n    {hook}\n") == []  # which nobody calls
    assert noted(f"class Own(Base):\n    def begin(self):\n        {hook}\n") == [("DDP025", 3)] * HOOKS[hook]
    assert noted(f"sees(net)\ndef sees(net):\n    def each(net):\n        {hook}\n") == [("DDP025", 4)] * HOOKS[hook]


KEPT = {
    "self.steps += 1; self.steps += 1": "in `self.steps`;",
    "self.steps, x = self.steps, self.update()": "`u.data`",
    "self.seen += 1": "",
    "self.steps = 1": "",
}


@pytest.mark.parametrize("line", KEPT)
def test_what_replicas_lose_is_noted(line: str) -> None:
    methods = f"    def update(self):\n        u.data = u * 2\n    def forward(self, x):\n        {line}\n"
    own = f"class Net(nn.Module):\n    def __init__(self):\n        self.steps = 0\n        u.data = u\n{methods}"
    notes = [note.what for note in convert_source(_HEAD + own, "train.py", Options()).notes]
    assert [KEPT[line] in what for what in notes] == [True] * bool(KEPT[line]), notes
    plain = convert_source(_HEAD + own.replace("nn.Module", "object"), "train.py", Options())  # a trainer, say
    assert [note.rule for note in plain.notes] == []


def test_what_may_be_an_iterator_of_python_2_is_noted() -> None:
    assert noted("its = [iter(loader)]\nbatch = its[0].next()\nbatch = its[0].next()\n") == [("DDP021", 2)]
    assert noted("class Prefetcher:\n    def next(self):\n        return 1\nbatch = [Prefetcher()][0].next()\n") == []


_CLASS = "class Loader(DataLoader):\n    def __init__(self, *args):\n        "


@pytest.mark.parametrize(
    "kind",
    [
        f"{_CLASS}super().__init__(*args)\n        self.collate_fn = max",
        f"{_CLASS}super().__init__(*args, collate_fn=max)",
        "from monai.data import DataLoader as Loader",
        "from torch_geometric.loader import DataLoader\nclass Loader(DataLoader): ...",
    ],
)
def test_a_collate_fn_that_a_class_of_loaders_brings_along_is_noted(kind: str) -> None:
    assert [rule for rule, _ in noted(f"{kind}\nwords = Loader(data)\n")] == ["DDP005"]
