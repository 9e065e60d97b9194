"""Deferred batches: whole to the script, rows in the rank; what travels, when, and who is told of mistakes."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import logging
import pickle
import threading
import types
from typing import Any, Callable

import numpy as np
import pytest
import torch
from deferring import ROWS, Large, batch, batches, data, exchanges
from dp2ddp_runtime import operations
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import deferred
from dp2ddp_runtime.model import wrapped as model
from dp2ddp_runtime.rank_zero import checkpoint
from dp2ddp_runtime.rank_zero import main_only as rank_zero
from dp2ddp_runtime.ranks import exchange
from rank_pool import RankError, RankPool, on_ranks
from torch import nn
from torch.autograd import Variable
from torch.nn import functional as F  # noqa: N812


@on_ranks(3, each=True)
def test_it_is_the_whole_batch_to_the_script() -> bool:
    (x, y), (whole_x, whole_y) = batch(), data()
    shapes = (x.shape, len(x), x.dtype, x.device, x.ndim, x.size(0), x.numel(), x.is_contiguous(), x.requires_grad)
    own = (whole_x.shape, ROWS, torch.float32, torch.device("cpu"), 4, ROWS, whole_x.numel(), True, False)
    assert shapes == own
    assert isinstance(x, torch.Tensor)
    assert torch.is_tensor(x)
    assert x.type() == "torch.FloatTensor"
    assert exchanges(lambda: (x.cpu(), x.float(), x.to("cpu"), y.long(), Variable(x), x.half(), len(y))) == 0
    assert not x.is_materialized
    assert torch.equal(x + 0, whole_x)
    assert torch.equal(y, whole_y)
    assert len(list(x)) == ROWS
    return x.rows.size(0) < ROWS


@on_ranks(3, each=True)
def test_a_variable_of_a_batch_gets_a_gradient() -> bool:
    (x, _), (whole, _) = batch(), data()
    for leaf in (Variable(x, requires_grad=True), Variable(x, True)):
        leaf.square().sum().backward()
        assert torch.equal(leaf.grad, 2 * whole)
        (again,) = torch.autograd.grad(leaf.sum(), leaf)
        assert torch.equal(again, torch.ones_like(whole))
    return isinstance(x, Variable)


def _written(x: torch.Tensor) -> Any:
    """What a tensor holds once something is written into what is contiguous of it, which may be itself."""
    z = x.contiguous()
    z += 1
    return x.tolist()


LAYOUTS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.contiguous().view(len(x), -1).mean(1).tolist(),
    lambda x: x.is_contiguous(),
    lambda x: x.contiguous().is_contiguous(),
    lambda x: x.tolist() and (x + 1).is_contiguous(),
    lambda x: [step for size, step in zip(x.shape, torch.zeros_like(x).stride()) if size > 1],
    _written,
]


@on_ranks(3, each=True)
def test_what_is_contiguous_of_a_single_row_need_not_be_of_all() -> bool:
    """As a normalization does that begins with the first batch's own numbers (glow): ranks with 2, 2 and 1 rows."""
    views = (lambda x: x.permute(1, 0, 2, 3), lambda x: x[:, :2], lambda x: x.permute(0, 2, 3, 1))
    for large, rows, view, look in itertools.product((False, True), (1, 2, 3, 5), views, LAYOUTS):
        with Large() if large else contextlib.nullcontext():
            x, y = (view(each) for each in (next(iter(batches(rows, rows)))[0], data(rows)[0]))
            assert look(x) == look(y), (large, rows, LAYOUTS.index(look))
    return True


def looks() -> list[str]:
    """Everything that looks at a batch, each at a fresh one: the result is that of the whole batch."""
    script = torch.jit.script(_scripted)
    whole_x, whole_y = data()
    permutation = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    mask = whole_y > 2
    each: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "permuted": lambda x, y: x[permutation],
        "permuted, all of it": lambda x, y: x[permutation, :],
        "permuted, a part": lambda x, y: x[permutation, :, 2:4],
        "picked": lambda x, y: x.index_select(0, torch.tensor([0, 0, 6, -1, 3, 3, 2]) % 7),
        "picked twice": lambda x, y: 0.3 * x + 0.7 * x[torch.tensor([0, 0, 6, -1, 3, 3, 2])][permutation],
        "counted": lambda x, y: (x > 0.5).sum() + y.sum(),
        "sliced": lambda x, y: x[2:5],
        "masked": lambda x, y: x[mask.to(y.device)],
        "masked by itself": lambda x, y: x[y > 2],
        "numpy": lambda x, y: torch.from_numpy(x.numpy()),
        "list": lambda x, y: torch.tensor(x.tolist()),
        "array": lambda x, y: torch.from_numpy(np.asarray(x) + np.stack([a.numpy() for a in x])),
        "tensors": lambda x, y: torch.tensor(x) + torch.Tensor(x) + torch.FloatTensor(x) + torch.as_tensor(x),
        "parameter": lambda x, y: nn.Parameter(x).detach() * 2,
        "data": lambda x, y: torch.zeros(1).data.resize_(x.size()).copy_(x),
        "item": lambda x, y: torch.tensor(x.sum().item()),
        "repr": repr,
        "format": lambda x, y: f"{x} {y}",
        "mean": lambda x, y: x.mean(),
        "matmul": lambda x, y: x.flatten(1) @ x.flatten(1).t(),
        "loss": lambda x, y: F.cross_entropy(x.flatten(1), y),
        "script": lambda x, y: script(x),
        "compiled": lambda x, y: torch.compile(lambda a: a * 2 + a.size(0), backend="eager")(x),
        "function": lambda x, y: _Doubled.apply(x),
        "deepcopy": lambda x, y: copy.deepcopy(x),
        "pickle": lambda x, y: pickle.loads(pickle.dumps(x)),
        "save": lambda x, y: _saved(x),
        "set": _set_some,
        "in place": lambda x, y: x.mul_(2).add_(1),
        "in place, through a view": lambda x, y: (x[:, 0].zero_(), x)[1],
        "in place, seen in a view": lambda x, y: (x.view(ROWS, -1), x.fill_(3))[0],
        "written with its own": lambda x, y: x.copy_(x.flip(0)),
        "copied into": lambda x, y: torch.zeros(ROWS, 3, 8, 8).copy_(x),
        "set into": lambda x, y: _set_into(x),
        "stacked": lambda x, y: torch.cat([x, x]),
        "one in a list": lambda x, y: torch.cat([x], 0)[:3] + torch.stack((x,), 1)[:3, 0],
        "as index": lambda x, y: torch.arange(10)[y],
        "embedding": lambda x, y: F.embedding(y, torch.eye(5)),
        "sorted": lambda x, y: y.sort().values,
        "draws": lambda x, y: torch.nn.functional.dropout(x, 0.5),
        "rand_like": lambda x, y: torch.rand_like(x) + torch.randn_like(x),
        "zeros_like": lambda x, y: torch.zeros_like(y),
        "shuffled": lambda x, y: x[torch.randperm(x.size(0))],
        "unbatched": lambda x, y: torch.stack([a.mean() for a in x]),
        "sum of squares": lambda x, y: (x**2).sum(),
        "reversed": lambda x, y: 1 - x,
        "wider": lambda x, y: x.unsqueeze_(1),
    }
    wrong = []
    for name, look in each.items():
        torch.manual_seed(5)
        expected = look(*(whole.clone() for whole in (whole_x, whole_y))) if name != "repr" else repr(whole_x)
        own = batch()
        torch.manual_seed(5)
        got = look(*own) if name != "repr" else repr(own[0])
        same = got == expected if isinstance(got, str) else torch.equal(deferred.materialize(got), expected)
        wrong += [] if same else [name]
    return wrong


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.size(0)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def _saved(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


def _set_some(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[x > 0.5] = 0
    x[0] += 1
    return x


def _set_into(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(ROWS + 1, 3, 8, 8)
    buffer[1:] = x
    return buffer


def large_looks() -> list[str]:
    with Large():
        return looks()


def test_what_looks_gets_the_whole_batch_also_where_it_is_large(ranks: RankPool) -> None:
    assert ranks(3, looks) == [[]] * 3
    assert ranks(2, large_looks) == [[], []]


@on_ranks(2, each=[1, 1, 1])
def test_a_usual_step_takes_one_exchange() -> list[int]:
    """Exchanges of a step: one, with the labels in it; nothing for the batch."""
    net = model.wrap_model(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))
    for _ in range(4):  # the first compares the ranks' parameters; in the 8th, side effects are looked for again
        net(torch.ones(ROWS, 3, 8, 8)).sum().backward()
    counts = []
    sent = []
    plain = exchange.plain

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor.numel())
        return plain(tensor)

    exchange.plain = watch
    with torch.no_grad():  # nothing is small here but the labels
        deferred.SMALL, before = 100, deferred.SMALL
    try:
        for x, y in batches(4, 12):
            x, y = (x - 0.5) / 0.25, y.long()

            def step(x: Any = x, y: Any = y) -> None:
                out = net(x)
                F.cross_entropy(out, y).backward()
                (out.argmax(1) == y).sum().item()

            sent.clear()  # rank 0's random state, when the iteration began
            counts.append(exchanges(step))
            assert sum(sent) <= 2 * 5 + 2 + 1 + 3, "outputs, labels, whether the data set drew, the shape of a sample"
            assert not x.is_materialized
            assert y.is_materialized
    finally:
        exchange.plain = plain
        deferred.SMALL = before
    return counts


class WritesIntoItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mul_(3).flatten(1))


@on_ranks(2, each=[True, True])
def test_what_the_model_writes_into_its_input_stays_there() -> list[bool]:
    with Large():
        net = model.wrap_model(WritesIntoItsInput())
        batches = [batch()[0] for _ in range(2)]
        for x in batches:
            net(x)
        return [torch.equal(x + 0, data()[0]) for x in batches]


@on_ranks(2, each=[True])
def test_batches_in_inference_mode() -> list[bool]:
    """Batches that are loaded in inference mode, by a model that writes into its input."""
    net = model.wrap_model(nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(192, 5)).eval())
    same = []
    with torch.inference_mode():
        for x, y in batches(64, 64):
            out, whole = net(x), data(64)[0]
            same.append(torch.equal(x, whole) and torch.allclose(out, net.module(whole)) and len(y) == len(out))
    return same


@on_ranks(2, each="right")
def test_batches_are_used_late() -> str:
    """After the loop, in the next iteration, in another loader's loop, after `break`, under `no_grad`."""
    whole_x, whole_y = data(12)
    first: Any = None
    for number, (x, y) in enumerate(batches(4, 12)):
        if number == 0:
            first = x, y
        if number == 1:
            assert torch.equal(first[0] * 1, whole_x[:4])
            for inner in batches(3, 12):
                assert torch.equal(first[1], whole_y[:4])
                assert torch.equal(inner[1], whole_y[:3])
                break
            with torch.no_grad():
                assert torch.equal(inner[0][0], whole_x[0])
            break
    assert torch.equal(y, whole_y[4:8])
    assert torch.equal(x.sum(), whole_x[4:8].sum())
    return "right"


class Shows:
    """A writer such as TensorBoard's."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def add_images(self, name: str, images: torch.Tensor) -> None:
        self.shown.append((name, images.sum().item()))


class Table(dict[str, Any]):
    """Like an `h5py.File`."""


def into_sinks(folder: str) -> list[Any]:
    """Sinks do nothing on other ranks, but look together with rank 0."""
    writer = rank_zero.main_only(Shows)()
    assert isinstance(writer, Shows) is world.is_main()
    writer.add_images("some", batch()[0])
    writer.add_images("others", {"deep": [batch()[0]]}["deep"][0])
    rank_zero.main_only(lambda x: x.sum())(batch()[0])
    table, x = rank_zero.main_only(Table)(), batch()[0]
    table["x"] = x
    assert x.is_materialized, "setting an item is a look of all ranks"
    tracker: Any = types.ModuleType("tracker")
    tracker.start, tracker.image = Shows, lambda x: x.sum().item()
    tracker = rank_zero.main_only(tracker)
    run = tracker.start()
    run.add_images("tracked", batch()[0])
    seen = tracker.image(batch()[0])
    assert not world.is_main() or run.shown == [("tracked", seen)]
    checkpoint.save({"batch": batch()[0]}, f"{folder}/batch.pt")
    with open(f"{folder}/log.txt", "w") as file:
        file.write(f"{batch()[1]}")
        print(batch()[1], file=file)
    logging.getLogger("quiet").debug("%s", batch()[1])  # no handler, no level: nobody looks
    told = operations.broadcast(batch()[1])
    return [
        told.tolist(),
        checkpoint.load(f"{folder}/batch.pt")["batch"].sum().item(),
        writer.shown if world.is_main() else None,
    ]


def test_sinks_look_on_every_rank(ranks: RankPool, tmp_path: Any) -> None:
    one, other = ranks(2, into_sinks, str(tmp_path))
    x, y = data()
    assert one[:2] == other[:2] == [y.tolist(), x.sum().item()]
    assert one[2] == [("some", x.sum().item()), ("others", x.sum().item())]


def looks_alone() -> None:
    x, _ = batch()
    if world.is_main():
        x.sum()
    model.wrap_model(nn.Linear(1, 1))(torch.ones(4, 1))


def test_a_rank_that_looks_alone_is_told_both_lines(ranks: RankPool) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, looks_alone)
    for message in raised.value.failures.values():
        assert "the ranks have diverged: rank 0 at test_deferred.py:" in message
        assert "a look at a batch" in message
        assert "rank 1 at test_deferred.py:" in message


def looks_in_a_thread(race: bool) -> Any:
    x, _ = batch()
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(x.sum().item())
        except exchange.Divergence as error:
            found.append(str(error))

    thread = threading.Thread(target=look)
    if race and world.is_main():
        with pytest.raises(exchange.Divergence):
            operations.broadcast(1)
        thread.start()
    else:
        thread.start()
        thread.join()
        if race:
            operations.broadcast(1)
    thread.join()
    return found[0]


def test_a_thread_may_look_in_its_turn(ranks: RankPool) -> None:
    assert ranks(2, looks_in_a_thread, False) == [data()[0].sum().item()] * 2


def test_a_thread_that_looks_at_another_time_on_another_rank_is_told(ranks: RankPool) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, looks_in_a_thread, True)
    assert "Divergence: the ranks have diverged" in str(raised.value)


def other_inputs(seed: bool) -> str:
    torch.manual_seed(0 if seed else world.rank())
    net = model.wrap_model(nn.Linear(3, 2))
    try:
        for _ in range(12):
            net(torch.rand(4, 3))
    except exchange.Divergence as error:
        return str(error)
    return "the same"


def test_inputs_that_no_loader_made_are_compared(ranks: RankPool) -> None:
    assert ranks(2, other_inputs, True) == ["the same"] * 2
    for error in ranks(2, other_inputs, False):
        assert "the tensor that is argument 1 of the wrapped model is different on rank 0 and rank 1" in error
        assert error.startswith("test_deferred.py:")
