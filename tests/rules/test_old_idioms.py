"""Scripts from before PyTorch 0.4 keep their idioms, as far as the torch that runs them does."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options


def test_a_place_behind_an_old_name_is_the_one_that_the_script_has() -> None:
    line = "x, y = a.cuda(async=True), b.cuda(async=True); net = nn.DataParallel(net)"
    conversion = convert_source(f"import torch.nn as nn\n{line}\n", "train.py", Options())
    places = [edit.span for edit in conversion.edits if edit.rule in ("DDP002", "DDP021") and edit.span.start[0] == 2]
    assert {line[span.start.column : span.end.column] for span in places} == {"async", "nn.DataParallel"}


def _notes_of(body: str) -> list[str]:
    script = f"import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n{body}\n"
    return [note.what for note in convert_source(script, "train.py", Options()).notes if note.rule == "DDP021"]


def test_what_has_no_other_name_is_told_once_in_a_file() -> None:
    loss = "loss = net(x)\nloss = loss.mean()\nprint(loss.data[0])\ntotal = 0\ntotal += loss.data[0]"
    assert _notes_of(loss) == ["`.data[0]` of a loss raises since PyTorch 0.4"]
    volatile = "a = Variable(x, volatile=True)\nb = Variable(x, volatile=True)"
    assert _notes_of(volatile) == ["`volatile` has no effect since PyTorch 0.4"]
    iterator = "from torch.utils.data.dataloader import _DataLoaderIter"
    assert _notes_of(f"try: {iterator}\nexcept ImportError: pass") == []
    assert _notes_of("from torch._six import inf") == ["`torch._six` is gone since PyTorch 2.0"]
    assert _notes_of(iterator) == ["`_DataLoaderIter` is gone since PyTorch 1.2"]


ACCURACY = "def accuracy(x):\n    return [correct[:k].view(-1).float().sum(0).mul_(2) for k in (1, 5)]\n"
LOSSES = {
    "loss = f(x)\nloss.backward()\nprint(loss.data[0])": ["loss"],
    "x = f(a)\nx.backward()\nprint(x.data[0], images.data[0])": ["x"],
    "def show(loss):\n    print(loss.data[0], prec1.data[0])": ["loss", "prec1"],
    "print(gamma.mean().data[0], x.max(1).data[0])": ["gamma.mean()"],
    "n = correct[:k].view(-1).sum()\nm = rows[:k].view(2)\nprint(loss.data[0])": ["loss"],
    f"{ACCURACY}a, b = accuracy(x)\nprint(a[0], loss.data[0])": ["loss", "correct[:k].view(-1).float().sum(0)"],
    f"{ACCURACY}a = accuracy(x)\nprint(a[0], loss.data[0])": ["loss"],
    f"{ACCURACY}a, b = accuracy(x)\nprint(a, loss.data[0])\ndef best(a):\n    return a[0]": ["loss"],
    "loss = net(x)\nprint(loss.data[0])\nloss = loss.mean()\nloss.backward()": [],  # a number for each replica
}


@pytest.mark.parametrize("body", LOSSES)
def test_the_number_of_a_loss_is_its_item(body: str) -> None:
    done = convert_source(f"import torch.nn as nn\nnet = nn.DataParallel(net)\n{body}\n", "train.py", Options())
    wanted = body
    for name in LOSSES[body]:
        wanted = wanted.replace(f"{name}.data[0]", f"{name}.item()").replace(
            name, name.replace("sum(0)", "sum(0, keepdim=True)")
        )
    wanted = wanted.replace("].view(-1)", "].reshape(-1)")
    assert done.new_text.endswith(f"{wanted}\n")
    assert [note.span.start.line for note in done.notes if note.rule == "DDP021"] == [4] * (not LOSSES[body])


def test_a_next_of_the_script_s_own_does_not_call_itself() -> None:
    own = "def next(batches):\n    it = iter(batches)\n    return it.next()[0]\n"
    script = f"import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n{own}net(next([[x]]))\n"
    assert own.replace(".next()", ".__next__()") in convert_source(script, "train.py", Options()).new_text
