"""Deferred batches: whole to the script, rows in the rank; what travels, when, and who is told of mistakes."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import pickle
from typing import Any, Callable

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from deferring import ROWS, all_large, batch, data, deferred, is_rows, messages, needs_swap
from dp2ddp_runtime import rows as rows_module
from dp2ddp_runtime.rows import Rows, whole
from dp2ddp_runtime.world import world
from modules import Made
from rank_pool import RankError, RankPool, on_ranks
from torch import nn
from torch.autograd import Variable
from torch.nn import functional as F  # noqa: N812


@on_ranks(3, each=True)
def test_it_is_the_whole_batch_to_the_script() -> bool:
    (x, y), (whole_x, whole_y) = batch(), data()
    shapes = (x.shape, len(x), x.dtype, x.device, x.ndim, x.size(0), x.numel(), x.requires_grad)
    own = (whole_x.shape, ROWS, torch.float32, torch.device("cpu"), 4, ROWS, whole_x.numel(), False)
    assert shapes == own
    assert isinstance(x, torch.Tensor)
    assert torch.is_tensor(x)
    assert x.type() == "torch.FloatTensor"
    assert messages(lambda: (x.cpu(), x.float(), x.to("cpu"), y.long(), Variable(x), x.half(), len(y))) == 0
    assert is_rows(x)
    assert torch.equal(x + 0, whole_x)
    assert torch.equal(y, whole_y)
    assert len(list(x)) == ROWS
    return True


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
        with all_large() if large else contextlib.nullcontext():
            x, y = (view(each) for each in (batch(rows)[0], data(rows)[0]))
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
        "mean": lambda x, y: x.mean(),
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
        "draws": lambda x, y: torch.nn.functional.dropout(x, 0.5),
        "shuffled": lambda x, y: x[torch.randperm(x.size(0))],
        "wider": lambda x, y: x.unsqueeze_(1),
        "a row": lambda x, y: x[0],
        "views across rows": lambda x, y: x.view(3, -1),
        "another first dimension": lambda x, y: x.transpose(0, 1),
        "all in one": lambda x, y: x[None],
        "a learned scale": lambda x, y: (x * torch.ones(3, 1, 1, requires_grad=True)).detach(),
        "chunks of rows": lambda x, y: torch.cat(x.chunk(2)[::-1]),
        "with alpha": lambda x, y: torch.add(x, x, alpha=0.3),
        "into a given tensor": lambda x, y: torch.add(x, 1, out=torch.empty(ROWS, 3, 8, 8)),
    }
    wrong = []
    for name, look in each.items():
        torch.manual_seed(5)
        expected = look(*(whole.clone() for whole in (whole_x, whole_y))) if name != "repr" else repr(whole_x)
        own = batch()
        torch.manual_seed(5)
        got = look(*own) if name != "repr" else repr(own[0])
        same = got == expected if isinstance(got, str) else torch.equal(whole(got), expected)
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
    with all_large():
        return looks()


def test_what_looks_gets_the_whole_batch_also_where_it_is_large(ranks: RankPool) -> None:
    assert ranks(3, looks) == [[]] * 3
    assert ranks(2, large_looks) == [[], []]


@needs_swap
@on_ranks(2, each=True)
def test_what_was_looked_at_is_an_ordinary_tensor() -> bool:
    """And so is all that shares its memory."""
    with all_large():
        x, _ = batch()
        view, copy_of_it = x.view(ROWS, -1), x * 1
    known = x, view
    x[0] = 3
    assert known[0] is x
    assert type(x) is type(view) is torch.Tensor
    assert is_rows(copy_of_it)
    view[1] = 4
    assert x[0].unique().tolist() == [3]
    assert x[1].unique().tolist() == [4]
    assert torch.equal(copy_of_it, data()[0])
    x.kept = 1  # type: ignore[attr-defined]
    return not [name for name in vars(x) if name != "kept"]


@on_ranks(2, each=True)
def test_a_view_that_was_a_copy_keeps_what_it_had() -> bool:
    (x, _), (whole_x, _) = batch(), data()

    def before_and_after(x: torch.Tensor) -> list[torch.Tensor]:
        made = [
            x.permute(0, 2, 3, 1).contiguous(),
            x[:, :2].reshape(ROWS, -1),
            x[:, :, :2].flatten(1),
            x.detach(),
            x.data,
        ]
        x.zero_()
        return made

    return all(map(torch.equal, before_and_after(x), before_and_after(whole_x)))


@needs_swap
@on_ranks(2, each=True)
def test_small_ones_come_along_with_the_model() -> bool:
    net = ddp.wrap_model(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))
    for _ in range(4):
        x, y = batch()
        x, y = (x - 0.5) / 0.25, y.long()
        out = net(x)
        assert messages(lambda y=y, out=out: (F.cross_entropy(out, y), (out.argmax(1) == y).sum().item())) == 0
    return type(y) is torch.Tensor


@on_ranks(2, each=True)
def test_what_the_model_writes_into_its_input_stays_there() -> bool:
    net = ddp.wrap_model(Made(lambda self, x: self.layer(x.mul_(3).flatten(1)), layer=nn.Linear(192, 2)))
    with all_large():
        x, _ = batch()
        net(x)
    return torch.equal(x, data()[0])


@on_ranks(2, each=True)
def test_batches_in_inference_mode() -> bool:
    (x, y), (whole_x, whole_y) = batch(64), data(64)
    with torch.inference_mode():
        inside = deferred(whole_x) * 2
        assert torch.equal(inside, whole_x * 2)
        assert torch.equal(y, whole_y)
    x += 1
    y += 1
    return torch.equal(x, whole_x + 1) and torch.equal(y, whole_y + 1)


def looks_alone() -> None:
    x, _ = batch()
    if world.rank == 0:
        x.sum()
    ddp.barrier()


def test_a_rank_that_looks_alone_is_told_both_lines(ranks: RankPool) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, looks_alone)
    for message in raised.value.failures.values():
        assert "the ranks have come apart: rank 0 at test_deferred.py:" in message
        assert "a look at a batch" in message
        assert "rank 1 at test_deferred.py:" in message


def mixes_by_itself() -> None:
    with all_large():
        x, _ = batch()
        x[torch.randperm(ROWS, generator=torch.Generator().manual_seed(world.rank))]


def test_another_order_on_each_rank_is_an_error(ranks: RankPool) -> None:
    with pytest.raises(
        RankError, match=r"the order of a batch's rows at test_deferred.py:\d+ differs between the ranks"
    ):
        ranks(2, mixes_by_itself)


def counts_apart() -> None:
    """A rank that has made a small batch more than another one: numbers no longer fit."""
    if world.rank:
        batch()
    x, _ = batch()
    x.sum()


def test_batches_that_only_some_ranks_have_mix_up_nothing(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"a look at a batch of shape .* differs between the ranks"):
        ranks(2, counts_apart)


@on_ranks(2, each=True)
def test_what_is_empty() -> bool:
    rows = Rows(torch.empty(0, 3), [0] * world.size)
    assert rows_module.whole(rows * 2).shape == (0, 3)
    return torch.equal(whole(Rows(torch.ones(0, 3), [0] * world.size)), torch.ones(0, 3))
