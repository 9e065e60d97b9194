"""The sharding proof: it goes through for what is known to add up, and for nothing else."""

from __future__ import annotations

import sys
import textwrap

import pytest

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.proof import Proof
from dp2ddp.analysis.source import parse
from dp2ddp.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from mylib import Dataset, resnet, mystery

class AverageMeter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return self.fc(x)

data = Dataset()
loader = DataLoader(data, batch_size=8, shuffle=True)
net = nn.DataParallel(Net())
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""

_STEP = """
optimizer.zero_grad()
out = net(x)
loss = criterion(out, y)
loss.backward()
optimizer.step()
"""


def loop(body: str, before: str = "", after: str = "", step: str = _STEP, head: str = _HEAD) -> str:
    """A whole script: one epoch loop with one training loop in it."""
    inner = textwrap.indent(textwrap.dedent(step) + textwrap.dedent(body), " " * 8)
    outer = textwrap.indent(textwrap.dedent(before), "    ")
    behind = textwrap.indent(textwrap.dedent(after), "    ")
    return f"{head}\nfor epoch in range(3):\n{outer}\n    for i, (x, y) in enumerate(loader):\n{inner}\n{behind}\n"


def proof_of(script: str) -> Proof:
    return Facts.of(parse(script, "train.py")).proof


def converted(script: str) -> str:
    result = convert_source(script, "train.py", Options())
    assert result.strategies[0].strategy == "sharded", result.strategies[0].reason
    return result.new_text


HOLDS = {
    "sums and counts": (
        "correct += (out.argmax(1) == y).sum().item()\ntotal += y.size(0)",
        "correct = total = 0",
        "print(correct / total)",
        ["    correct, total = ddp.all_reduce(correct, total, over=loader)"],
    ),
    "a sum of losses over samples": (
        "running += loss.item() * x.size(0)",
        "running = 0.0",
        "print(running / len(loader.dataset))",
        ["        running += loss.item() * x.size(0)", "    running = ddp.all_reduce(running, over=loader)"],
    ),
    "a mean of batch means": (
        "running += loss.item()",
        "running = 0.0",
        "print(running / len(loader))",
        ["running += ddp.weighted(loss.item(), over=loader)", "    running = ddp.all_reduce(running, over=loader)"],
    ),
    "an accumulator that grows over all epochs is fed whole-batch numbers": (
        "seen += x.size(0)",
        "seen = start()",
        "print(seen)",
        ["        seen += ddp.all_reduce(x.size(0), over=loader)"],
    ),
    "an attribute is fed whole-batch numbers": (
        "state.loss += loss.item()",
        "",
        "print(state.loss)",
        ['        state.loss += ddp.all_reduce(loss.item(), op="mean", over=loader)'],
    ),
    "a meter": (
        "losses.update(loss.item(), x.size(0))",
        "losses = AverageMeter()",
        "print(losses.avg)",
        ["        losses.update(loss.item(), x.size(0))", "    losses = ddp.all_reduce(losses, over=loader)"],
    ),
    "a meter that others hold is fed whole-batch numbers": (
        "losses.update(loss.item(), x.size(0))",
        "losses = AverageMeter()\nprogress = mystery([losses])",
        "print(losses.avg)",
        [
            '        losses.update(ddp.all_reduce(loss.item(), op="mean", over=loader), '
            "ddp.all_reduce(x.size(0), over=loader))"
        ],
    ),
    "a meter that counts batches": (
        "losses.update(loss.item())",
        "losses = AverageMeter()",
        "print(losses.avg)",
        ['        losses.update(ddp.all_reduce(loss.item(), op="mean", over=loader))'],
    ),
    "a list of losses": (
        "history.append(loss.item())",
        "history = []",
        "print(np.mean(history))",
        ['        history.append(ddp.all_reduce(loss.item(), op="mean", over=loader))'],
    ),
    "numbers shown in the loop": (
        "correct += (out.argmax(1) == y).sum().item()\n"
        "if i % 10 == 0:\n    print(f'{i} {loss.item():.3f} {correct}', i * len(x))",
        "correct = 0",
        "",
        [
            '{ddp.all_reduce(loss.item(), op="mean", over=loader):.3f}',
            "{ddp.all_reduce(correct, over=loader)}",
            "ddp.all_reduce(i * len(x), over=loader))",
        ],
    ),
    "a ratio shown in the loop": (
        "correct += (out.argmax(1) == y).sum().item()\ntotal += y.size(0)\nprint(correct / total)",
        "correct, total = 0, 0",
        "",
        ["print(ddp.all_reduce(correct, over=loader) / ddp.all_reduce(total, over=loader))"],
    ),
    "a constant added to a sum, which is not the sum of the constants": (
        "print((out.argmax(1) == y).sum().item() + 1)",
        "",
        "",
        ["print(ddp.all_reduce((out.argmax(1) == y).sum().item(), over=loader) + 1)"],
    ),
    "the last batch's loss, after the loop": (
        "",
        "",
        "print(loss.item())",
        ['    print(ddp.all_reduce(loss.item(), op="mean", over=loader))'],
    ),
    "a scheduler stepped by the loss": (
        "scheduler.step(loss)",
        "",
        "",
        ['        scheduler.step(ddp.all_reduce(loss, op="mean", over=loader))'],
    ),
    "an accumulator that is reset in the loop": (
        "running += loss.item()\nif i % 5 == 4:\n    print(running / 5)\n    running = 0.0",
        "running = 0.0",
        "",
        [
            "running += ddp.weighted(loss.item(), over=loader)",
            "print(ddp.all_reduce(running / 5, over=loader))",
        ],
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_it_goes_through(name: str) -> None:
    body, before, after, expected = HOLDS[name]
    text = converted(loop(body, before, after))
    for line in expected:
        assert line in text


ENDS = {
    "class weights": ("criterion = nn.CrossEntropyLoss(weight=w)", "weights its classes"),
    "class weights by position": ("criterion = nn.CrossEntropyLoss(w)", "may weight the samples"),
    "ignore_index": ("criterion = nn.CrossEntropyLoss(ignore_index=0)", "ignores some targets"),
    "a sum": ("criterion = nn.CrossEntropyLoss(reduction='sum')", "sum over the samples"),
    "an old sum": ("criterion = nn.CrossEntropyLoss(size_average=False)", "sum over the samples"),
    "a loss of its own": ("criterion = mystery()", "can't be told whether each sample"),
    "a triplet loss": ("criterion = nn.TripletMarginLoss()", "not known as a mean"),
    "collate_fn": ("loader = DataLoader(data, collate_fn=mystery)", "collate_fn"),
    "another dimension": ("net = nn.DataParallel(Net(), dim=1)", "another dimension"),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_at_what_the_script_builds(name: str) -> None:
    line, reason = ENDS[name]
    role = line.split(" = ")[0]
    head = "\n".join(line if old.startswith(f"{role} = ") else old for old in _HEAD.splitlines())
    found = proof_of(loop("", head=head))
    assert not found.holds
    assert reason in found.failures[0].reason


ENDS_IN_LOOP = {
    "a branch on the loss": "if torch.isnan(loss):\n    break",
    "a branch on a number": "if loss.item() > 10:\n    break",
    "an assertion": "assert loss.item() < 10",
    "a conditional expression": "lr = 1 if loss.item() > 2 else 2",
    "a random draw": "noise = torch.randn(3)",
    "numpy's random draw": "lam = np.random.beta(1, 1)",
    "a shuffled batch": "index = torch.randperm(x.size(0))",
    "samples picked out": "print(out[:3])",
    "a loop over samples": "for one in y:\n    print(one)",
    "a sum as a loss": "out.sum().backward()",
    "a maximum over the samples": "print(out.max())",
    "a softmax over the samples": "print(F.softmax(out, dim=0))",
    "a standard deviation": "print(out.std())",
    "a median": "print(loss.median(out))",
    "outputs handed to the unknown": "mystery(out)",
    "a view with a fixed number of samples": "print(y.view(8, 1))",
    "a forward past the wrap": "net.module(x).sum()",
    "gradients taken by hand": "torch.autograd.grad(loss, net.parameters())",
    "a function defined in the loop": "def closure():\n    return loss\noptimizer.step(closure)",
    "the model called with something else": "net(torch.ones(2, 4)).mean().backward()",
    "a table of counts": "table = confusion(y.tolist(), x)",
}


@pytest.mark.parametrize("name", ENDS_IN_LOOP)
def test_it_ends_in_the_loop(name: str) -> None:
    script = loop(ENDS_IN_LOOP[name])
    result = convert_source(script, "train.py", Options())
    assert result.strategies[0].strategy == "gathered", name


def test_next_of_an_iterator_is_no_plain_loop() -> None:
    script = _HEAD + "batches = iter(loader)\nfor i in range(5):\n    x, y = next(batches)\n"
    script += textwrap.indent(_STEP, "    ")
    found = proof_of(script)
    assert "another way than by a plain loop" in found.failures[0].reason


def test_a_loss_of_several_means_with_a_regulariser() -> None:
    step = _STEP.replace(
        "criterion(out, y)",
        "criterion(out, y) + 0.5 * F.mse_loss(out, y) + 1e-4 * sum(p.norm() for p in net.parameters())",
    )
    assert proof_of(loop("", step=step)).holds


def test_accumulation_divides_a_mean_by_a_constant() -> None:
    assert proof_of(loop("", step=_STEP.replace("loss.backward()", "(loss / 4).backward()"))).holds


def test_a_sum_that_is_only_reported_is_fine() -> None:
    script = (
        _HEAD
        + """
with torch.no_grad():
    test_loss = 0
    for x, y in loader:
        test_loss += F.nll_loss(net(x), y, reduction='sum').item()
    print(test_loss / len(loader.dataset))
"""
    )
    assert "    test_loss = ddp.all_reduce(test_loss, over=loader)" in converted(script)


def test_predictions_are_gathered_in_evaluation() -> None:
    script = (
        _HEAD
        + """
predictions = []
with torch.no_grad():
    for x, y in loader:
        predictions.append(net(x).argmax(1).cpu())
torch.cat(predictions)
"""
    )
    assert "predictions.append(ddp.gather(net(x).argmax(1).cpu(), over=loader))" in converted(script)


def test_outputs_needed_in_every_training_step_are_gathered_by_the_model() -> None:
    result = convert_source(loop("report(out.detach())"), "train.py", Options())
    assert result.strategies[0].strategy == "gathered"
    assert "every training step needs the whole batch's outputs" in result.strategies[0].reason


def test_the_reason_names_the_line() -> None:
    script = loop("if loss.item() > 3:\n    break")
    result = convert_source(script, "train.py", Options())
    line = 1 + script.splitlines().index("        if loss.item() > 3:")
    assert result.strategies[0].reason.endswith(f"line {line})")


def test_a_helper_called_with_outputs_is_followed() -> None:
    head = _HEAD + (
        "def accuracy(output, target, topk=(1,)):\n"
        "    maxk = max(topk)\n"
        "    n = target.size(0)\n"
        "    _, pred = output.topk(maxk, 1, True, True)\n"
        "    pred = pred.t()\n"
        "    correct = pred.eq(target.view(1, -1).expand_as(pred))\n"
        "    res = []\n"
        "    for k in topk:\n"
        "        correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)\n"
        "        res.append(correct_k.mul_(100.0 / n))\n"
        "    return res\n"
    )
    text = converted(
        loop(
            "a, b = accuracy(out, y, (1, 5))\ntop1.update(a[0], x.size(0))",
            "top1 = AverageMeter()",
            "print(top1.avg)",
            head=head,
        )
    )
    assert "top1.update(a[0], x.size(0))" in text
    assert "    top1 = ddp.all_reduce(top1, over=loader)" in text


def test_a_helper_that_shows_numbers_without_knowing_the_loader_ends_the_proof() -> None:
    body = textwrap.indent(loop("show(loss.item())", head="loader = DataLoader(data)"), "    ")
    found = proof_of(_HEAD + "def show(value):\n    print(value)\n\ndef main():\n" + body)
    assert "doesn't know the loader" in found.failures[0].reason


def test_a_global_loader_is_known_in_a_helper() -> None:
    head = (
        _HEAD + "def train_step(x, y):\n    loss = criterion(net(x), y)\n    loss.backward()\n    print(loss.item())\n"
    )
    text = converted(loop("", step="train_step(x, y)", head=head))
    assert '    print(ddp.all_reduce(loss.item(), op="mean", over=loader))' in text


def test_sharding_that_is_asked_for_notes_each_thing_that_is_not_proved() -> None:
    script = loop("if loss.item() > 3:\n    stop()\nprint(out.max())\nprint(loss.item())")
    result = convert_source(script, "train.py", Options(strategy="sharded"))
    assert result.strategies[0].strategy == "sharded"
    assert "asked for, but not proved" in result.strategies[0].reason
    assert [n.what.split(": ")[1] for n in result.notes] == [
        "a value of the shard is compared, so the ranks could part",
        "`max` over all samples",
    ]
    assert 'print(ddp.all_reduce(loss.item(), op="mean", over=loader))' in result.new_text


def test_loaders_in_a_dictionary_go_by_their_key() -> None:
    script = (
        _HEAD
        + """
loaders = {phase: DataLoader(data, batch_size=8) for phase in ["train", "val"]}
for epoch in range(2):
    for phase in ["train", "val"]:
        running_loss = 0.0
        corrects = 0
        for x, y in loaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = net(x)
                _, preds = torch.max(out, 1)
                loss = criterion(out, y)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_loss += loss.item() * x.size(0)
            corrects += torch.sum(preds == y.data)
        print(phase, running_loss / len(data), corrects.double() / len(data))
"""
    )
    text = converted(script)
    assert "loaders = {phase: ddp.shard_loader(DataLoader(data, batch_size=8)) for phase in" in text
    assert "        running_loss, corrects = ddp.all_reduce(running_loss, corrects, over=loaders[phase])" in text
    assert "ddp.set_epoch(" not in text  # no single loader is this epoch's


HIDDEN = {
    "a stored enumerate": (
        "batches = enumerate(loader)\n"
        "for i, (x, y) in batches:\n"
        "    criterion(net(x), y).backward()\n"
        "for x, y in loader:\n"
        "    net(x)\n"
    ),
    "a stored bar around enumerate": (
        "from tqdm import tqdm\n"
        "bar = tqdm(enumerate(loader))\n"
        "for i, (x, y) in bar:\n"
        "    criterion(net(x), y).backward()\n"
        "for x, y in loader:\n"
        "    net(x)\n"
    ),
    "a helper that reads the batch from globals": (
        "def get_loss():\n"
        "    return mystery(net(x), y)\n"
        "for x, y in loader:\n"
        "    loss = get_loss()\n"
        "    loss.backward()\n"
    ),
    "match": (
        "for x, y in loader:\n"
        "    out = net(x)\n"
        "    match mode:\n"
        "        case 'a':\n"
        "            loss = out.max()\n"
        "    loss.backward()\n"
    ),
    "a dictionary of the batch": (
        "with torch.no_grad():\n"
        "    for x, y in loader:\n"
        "        parts = {int(k): 1 for k in y}\n"
        "        print(parts)\n"
        "        net(x)\n"
    ),
    "ignored targets": ("for x, y in loader:\n    y[y == 3] = -100\n    criterion(net(x), y).backward()\n"),
    "an exception in the loop": (
        "for x, y in loader:\n"
        "    try:\n"
        "        criterion(net(x), y).backward()\n"
        "    except RuntimeError:\n"
        "        continue\n"
    ),
    "a bar under the name of its loader": (
        "from tqdm import tqdm\nloader = tqdm(loader)\nfor x, y in loader:\n    criterion(net(x), y).backward()\n"
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_out_of_sight_ends_the_proof(name: str) -> None:
    if name == "match" and sys.version_info < (3, 10):
        return
    result = convert_source(_HEAD + HIDDEN[name], "train.py", Options())
    assert result.strategies[0].strategy == "gathered", name


def test_numbers_in_double_quoted_f_strings() -> None:
    text = converted(loop('print(f"{epoch} {loss.item():.3f}")'))
    assert """print(f"{epoch} {ddp.all_reduce(loss.item(), op='mean', over=loader):.3f}")""" in text


def test_a_bar_in_a_with_statement_is_looked_through() -> None:
    script = (
        _HEAD
        + """
from tqdm import tqdm
with tqdm(loader) as bar:
    for x, y in bar:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item())
"""
    )
    assert 'bar.set_postfix(loss=ddp.all_reduce(loss.item(), op="mean", over=loader))' in converted(script)


def test_accumulators_of_an_enclosing_scope_are_reduced() -> None:
    script = (
        _HEAD
        + """
correct = 0
def train():
    global correct
    correct = 0
    for x, y in loader:
        out = net(x)
        criterion(out, y).backward()
        correct += (out.argmax(1) == y).sum().item()
train()
print(correct)
"""
    )
    assert "    correct = ddp.all_reduce(correct, over=loader)" in converted(script)


def test_an_else_of_the_loop_shows_whole_numbers() -> None:
    script = (
        _HEAD
        + """
total = correct = 0
for x, y in loader:
    out = net(x)
    criterion(out, y).backward()
    correct += (out.argmax(1) == y).sum().item()
    total += y.size(0)
else:
    print(correct / total)
"""
    )
    assert "print(ddp.all_reduce(correct, over=loader) / ddp.all_reduce(total, over=loader))" in converted(script)


def test_a_meter_that_keeps_more_is_fed_whole_numbers() -> None:
    head = _HEAD.replace("        self.count += n\n", "        self.count += n\n        self.best = max(val, n)\n")
    text = converted(
        loop("losses.update(loss.item(), x.size(0))", "losses = AverageMeter()", "print(losses.avg)", head=head)
    )
    assert 'self.best = max(ddp.all_reduce(val, op="mean", over=loader), ddp.all_reduce(n, over=loader))' in text
