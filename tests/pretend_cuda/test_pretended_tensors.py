"""Tensors on pretend devices: what they refuse, and that all the rest is torch's."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from children import call
from torch import nn


def mixing() -> None:
    on, off = torch.ones(2, 2, device="cuda:0"), torch.ones(2, 2)
    wrong = "Expected all tensors to be on the same device"
    for mix in (
        lambda: on + off,
        lambda: off + on,
        lambda: off.add_(on),
        lambda: on @ torch.ones(2, 2, device="cuda:1"),
        lambda: torch.cat([on, off]),
        lambda: F.cross_entropy(on, torch.tensor([0, 1])),
        lambda: nn.Linear(2, 2).cuda()(off),
        lambda: nn.Embedding(2, 2).cuda()(torch.tensor([1])),
        lambda: nn.BatchNorm1d(2).cuda()(off),
        lambda: torch._foreach_add([on], [off]),
    ):
        with pytest.raises(RuntimeError, match=wrong):
            mix()
    with pytest.raises(IndexError, match="same device as the indexed tensor"):
        off[torch.tensor([1], device="cuda")]
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        on.numpy()
    assert (on * torch.tensor(2.0)).device == on.device  # a number goes along with any device


def memory() -> None:
    parameter, other = nn.Parameter(torch.randn(4, device="cuda")), torch.randn(4, device="cuda")
    before = parameter.data_ptr()
    assert parameter.view(2, 2).data_ptr() == parameter.detach().data_ptr() == before != other.data_ptr()
    parameter.data = other
    assert parameter.data_ptr() == other.data_ptr() != before
    version = parameter._version
    with torch.no_grad():
        parameter.add_(1)
        torch._foreach_mul_([parameter], 2)
        parameter.view(2, 2)[0] = 7
    assert parameter._version == version + 3
    assert other[:2].tolist() == [7, 7]
    grown = torch.empty(0, device="cuda:1")
    torch.add(torch.ones(3, device="cuda:1"), 1, out=grown)
    assert grown.tolist() == [2, 2, 2]
    assert grown.t_().resize_(5).device == torch.device("cuda:1")


def copying() -> None:
    net = nn.Linear(4, 2).cuda()
    twin = copy.deepcopy(net)
    assert torch.equal(twin.weight, net.weight)
    assert twin.weight.data_ptr() != net.weight.data_ptr()
    assert pickle.loads(pickle.dumps(net.weight)).device == net.weight.device
    saved = io.BytesIO()
    torch.save(net.state_dict(), saved)
    for where, device in ((None, "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")):
        saved.seek(0)
        loaded = torch.load(saved, map_location=where)["weight"]
        assert str(loaded.device) == device
        assert torch.equal(loaded.cpu(), net.weight.cpu())
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(3).is_pinned()
    batches = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, num_workers=1, pin_memory=True)
    assert [batch.cuda(non_blocking=True).tolist() for batch in batches] == [[0, 1], [2, 3]]


def devices() -> None:
    torch.cuda.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]  # a thread starts on the first device
    assert torch.zeros(1, device="cuda").get_device() == 1
    with torch.cuda.device(0):
        assert torch.zeros(1).cuda().get_device() == 0
    for beyond in (lambda: torch.zeros(1, device="cuda:2"), lambda: torch.cuda.set_device(2)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            beyond()
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 2
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    torch.cuda.Event().record()
    torch.cuda.memory_summary()


def generators() -> None:
    torch.manual_seed(3)
    first, second = (torch.rand(3, device=f"cuda:{index}").tolist() for index in range(2))
    assert first == second == torch.rand(3).tolist()  # each has its own, and all are seeded alike
    states = torch.cuda.get_rng_state_all()
    host = torch.get_rng_state()
    F.dropout(torch.ones(100, device="cuda:1"))
    assert torch.equal(torch.cuda.get_rng_state(0), states[0])
    assert not torch.equal(torch.cuda.get_rng_state(1), states[1])
    assert torch.equal(torch.get_rng_state(), host)
    torch.cuda.set_rng_state(states[1], "cuda:1")
    own = torch.Generator("cuda:1")
    own.set_state(states[1])
    assert torch.rand(3, device="cuda:1").tolist() == torch.rand(3, device="cuda:1", generator=own).tolist()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, device="cuda", generator=torch.Generator())


def cells() -> None:
    for kind in (nn.LSTM, nn.GRU):
        torch.manual_seed(0)
        plain = kind(5, 6, 2, bidirectional=True).double()
        pretend = copy.deepcopy(plain).cuda()
        x = torch.randn(7, 3, 5).double()
        one, other = plain(x)[0], pretend(x.cuda())[0]
        one.pow(2).sum().backward()
        other.pow(2).sum().backward()
        assert torch.allclose(one, other.cpu(), atol=1e-14)
        for p, q in zip(plain.parameters(), pretend.parameters()):
            assert torch.allclose(p.grad, q.grad.cpu(), atol=1e-12)
    norm = nn.RMSNorm(4).double()
    x = torch.randn(3, 4).double().requires_grad_()
    norm(x).pow(3).sum().backward()
    y = x.detach().cuda().requires_grad_()
    copy.deepcopy(norm).cuda()(y).pow(3).sum().backward()
    assert torch.allclose(x.grad, y.grad.cpu(), atol=1e-12)


def check_all(*checks: str) -> None:
    for name in checks:
        globals()[name]()


def test_what_is_mixed_is_refused() -> None:
    call(mixing)


def test_tensors_are_torchs() -> None:
    call(check_all, "memory", "copying")


def test_devices_and_generators() -> None:
    call(check_all, "devices", "generators")


def test_training_is_as_on_the_cpu() -> None:
    call(check_all, "cells")
