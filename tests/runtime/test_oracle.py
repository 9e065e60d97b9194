"""The oracle against what `nn.DataParallel`'s documentation and source say it does."""

from __future__ import annotations

import io
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from dp2ddp_runtime.ranks import rng
from torch import nn

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

Pair = namedtuple("Pair", "left right")


class Spy(nn.Module):
    """Keeps what each replica got, and answers with `answer` of it."""

    def __init__(self, answer: Any = lambda *args, **kwargs: args[0]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.calls: list[Any] = []
        self.answer = answer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.answer(*args, **kwargs)


def sizes(spy: Spy) -> list[int]:
    return [args[0].size(0) for args, _ in spy.calls]


@pytest.mark.parametrize(
    ("rows", "n", "expected"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (7, 3, [3, 3, 1]), (4, 3, [2, 2]), (1, 3, [1]), (9, 1, [9])],
)
def test_inputs_are_cut_as_torch_chunk_cuts(rows: int, n: int, expected: list[int]) -> None:
    spy = Spy()
    x = torch.arange(rows * 2.0).view(rows, 2)
    out = EmulatedDataParallel(spy, n=n)(x)
    assert sizes(spy) == expected == [len(chunk) for chunk in x.chunk(n)]
    assert torch.equal(out, x)


def test_nested_inputs_are_cut_and_other_values_shared() -> None:
    spy = Spy()
    x, marker = torch.arange(4.0), object()
    EmulatedDataParallel(spy, n=2)(x, [x, (x, 3)], Pair(x, "s"), OrderedDict(a=x), y=x, flag=marker)
    (_, cut, pair, mapping), named = spy.calls[1]
    half = x[2:]
    assert torch.equal(cut[0], half)
    assert torch.equal(cut[1][0], half)
    assert cut[1][1] == 3
    assert isinstance(pair, Pair)
    assert torch.equal(pair.left, half)
    assert pair.right == "s"
    assert isinstance(mapping, OrderedDict)
    assert torch.equal(mapping["a"], half)
    assert torch.equal(named["y"], half)
    assert named["flag"] is marker


def test_other_dimensions_and_calls_without_tensors() -> None:
    spy = Spy()
    x = torch.rand(3, 5)
    assert torch.equal(EmulatedDataParallel(spy, n=2, dim=1)(x), x)
    assert [args[0].shape for args, _ in spy.calls] == [(3, 3), (3, 2)]
    spy = Spy(lambda *args: torch.ones(2))
    assert EmulatedDataParallel(spy, n=3)().shape == (2,)
    assert EmulatedDataParallel(spy, n=3)("text").shape == (6,)


def test_outputs_are_gathered_in_order_and_scalars_make_a_vector() -> None:
    def answer(x: torch.Tensor) -> Any:
        return {"rows": x * 2, "pair": Pair(x, [x + 1, None]), "loss": x.sum()}

    x = torch.arange(5.0)
    out = EmulatedDataParallel(Spy(answer), n=2)(x)
    assert torch.equal(out["rows"], x * 2)
    assert torch.equal(out["pair"].right[0], x + 1)
    assert out["pair"].right[1] is None
    assert torch.equal(out["loss"], torch.tensor([3.0, 7.0]))
    assert EmulatedDataParallel(Spy(lambda x: x.sum()), n=3)(torch.ones(1)).shape == (1,)
    with pytest.raises(TypeError, match="float"):
        EmulatedDataParallel(Spy(lambda x: x.sum().item()), n=2)(x)


def test_gradients_of_all_replicas_are_summed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.rand(7, 3, dtype=torch.double)
    net(x).square().mean().backward()
    expected = [param.grad for param in net.parameters()]
    net.zero_grad(set_to_none=True)
    EmulatedDataParallel(net, n=3)(x).square().mean().backward()
    for param, wanted in zip(net.parameters(), expected):
        assert wanted is not None
        torch.testing.assert_close(param.grad, wanted)


def test_only_replica_0_updates_buffers_and_each_normalises_its_own_chunk() -> None:
    norm = nn.BatchNorm1d(2, momentum=1.0)
    x = torch.rand(7, 2)
    out = EmulatedDataParallel(norm, n=2)(x)
    torch.testing.assert_close(norm.running_mean, x[:4].mean(0))
    torch.testing.assert_close(out[4:].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    assert norm.num_batches_tracked == 1


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        self.count += 1
        return x + self.seen


def test_what_replicas_assign_is_lost() -> None:
    module = Replaces()
    net = EmulatedDataParallel(module, n=2)
    for _ in range(2):
        assert torch.equal(net(torch.zeros(2)), torch.ones(2))
    assert module.count == 0
    assert module.seen == 0


def test_replicas_draw_from_streams_of_their_own_and_leave_the_shared_one() -> None:
    torch.manual_seed(5)
    after = torch.rand(1)
    torch.manual_seed(5)
    net = EmulatedDataParallel(nn.Dropout(0.5), n=2)
    out = net(torch.ones(200))
    assert torch.equal(torch.rand(1), after)
    for rank, part in enumerate(out.chunk(2)):
        torch.manual_seed(rng.replica_seed(5, rank))
        assert torch.equal(part, nn.functional.dropout(torch.ones(100), 0.5))


def test_recurrent_modules_and_shared_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.rnn = nn.LSTM(4, 4, batch_first=True)
            self.out = nn.Linear(4, 5, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.rnn(self.embed(x))[0])

    net = Tied().double()
    x = torch.randint(5, (5, 3))
    net(x).square().sum().backward()
    expected = net.embed.weight.grad
    assert expected is not None
    net.zero_grad(set_to_none=True)
    EmulatedDataParallel(net, n=2)(x).square().sum().backward()
    torch.testing.assert_close(net.embed.weight.grad, expected)


def test_it_stands_in_for_data_parallel() -> None:
    net = EmulatedDataParallel(nn.Linear(2, 1), device_ids=[0, 1], n=3)
    assert isinstance(net, nn.DataParallel)
    assert list(net.state_dict()) == ["module.weight", "module.bias"]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert EmulatedDataParallel(optimizer, device_ids=[0, 1]).module is optimizer
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(torch.ones(3, 2)), net(torch.ones(3, 2)))
    with pytest.raises(ValueError, match="at least 1"):
        EmulatedDataParallel(nn.Linear(1, 1), n=0)
