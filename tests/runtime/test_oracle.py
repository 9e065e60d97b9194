"""The oracle beside what is compared with torch's own: calls without tensors, its streams, what it stands in for."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from dp2ddp_runtime import streams
from torch import nn

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel


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


def test_other_dimensions_and_calls_without_tensors() -> None:
    spy = Spy()
    x = torch.rand(3, 5)
    assert torch.equal(EmulatedDataParallel(spy, n=2, dim=1)(x), x)
    assert [args[0].shape for args, _ in spy.calls] == [(3, 3), (3, 2)]
    spy = Spy(lambda *args: torch.ones(2))
    assert EmulatedDataParallel(spy, n=3)().shape == (2,)
    assert EmulatedDataParallel(spy, n=3)("text").shape == (2,), "once, as on one GPU"


def test_replicas_draw_from_streams_of_their_own_and_leave_the_shared_one() -> None:
    torch.manual_seed(5)
    after = torch.rand(1)
    torch.manual_seed(5)
    net = EmulatedDataParallel(nn.Dropout(0.5), n=2)
    out = net(torch.ones(200))
    assert torch.equal(torch.rand(1), after)
    for rank, part in enumerate(out.chunk(2)):
        torch.manual_seed(streams.replica_seed(5, rank))
        assert torch.equal(part, nn.functional.dropout(torch.ones(100), 0.5))


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
