"""torch's own `nn.DataParallel` on pretend devices, and its oracle: it sees mistakes that a CPU run doesn't show."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from children import call
from torch import Tensor, nn

from pretend_cuda import copies, reset_copies
from pretend_cuda.replicas import OracleDataParallel


def train(wrap: Any, device: Any, split: Any = lambda *batch: batch) -> list[Tensor]:
    """The state of a small net after five steps, the last of them with one sample only."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 5)
    net = nn.Sequential(*layers).double().to(device)
    model = wrap(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    numbers = torch.Generator().manual_seed(1)
    for size in (7, 8, 8, 7, 1):
        x = torch.randn(size, 3, 8, 8, generator=numbers).double().to(device)
        y = torch.randint(0, 5, (size,), generator=numbers).to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [value.detach().cpu() for value in net.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(one, other))


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 4), nn.Linear(3, 4)
        self.cell = nn.LSTM(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.used(x).tanh()[:, None])[0][:, 0]


def gradients() -> None:
    for wrap in (nn.DataParallel, OracleDataParallel):
        torch.manual_seed(0)
        net = Parts().cuda()
        plain = torch.autograd.grad(net(torch.ones(5, 3, device="cuda")).pow(2).sum(), net.used.parameters())
        model = wrap(net)
        model(torch.ones(5, 3)).pow(2).sum().backward()
        assert net.unused.weight.grad is not None  # DDP would leave None
        assert not net.unused.weight.grad.any()
        assert all(torch.allclose(p.grad, q, atol=1e-6) for p, q in zip(net.used.parameters(), plain))
        x = torch.randn(5, 3, device="cuda", requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.pow(2).sum().backward()
        assert x.grad is not None


class OnOne(nn.Module):
    """Adds what lies on the first device."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.ones(2, device="cuda:0")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constant


class Peeks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.sum())  # to the host, in each step


def mistakes() -> None:
    for wrap in (nn.DataParallel, OracleDataParallel):
        assert wrap(OnOne())(torch.ones(1, 2)).tolist() == [[2, 2]]
        with pytest.raises(
            RuntimeError, match=r"replica 1 on device 1[\s\S]*Expected all tensors to be on the same device"
        ):
            wrap(OnOne())(torch.ones(4, 2))
        x = torch.ones(4, 2, device="cuda")
        reset_copies()
        wrap(nn.Identity())(x)
        assert not copies(target="cpu")
        assert sum(copy.bytes for copy in copies("cuda:0", "cuda:1")) == 16
        wrap(Peeks())(x)
        line = Peeks.forward.__code__.co_firstlineno + 1
        assert {(copy.source, copy.lines[0]) for copy in copies(target="cpu")} == {
            (f"cuda:{index}", f"{os.path.basename(__file__)}:{line}") for index in range(2)
        }


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert torch.cuda.current_device() == x.get_device()
        return x @ x.t()


def kinds(model: Any) -> list[torch.dtype]:
    """What autocast makes of a batch for two replicas, and for one."""
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        found = [model(torch.ones(rows, 3, device="cuda")) for rows in (4, 1)]
    assert not found[0].requires_grad
    return [each.dtype for each in found]


HALF = [torch.float16, torch.bfloat16]  # a thread doesn't take over which type: so on GPUs


def precision() -> None:
    assert kinds(nn.DataParallel(Product())) == kinds(OracleDataParallel(Product())) == HALF


def check_all(*checks: Any) -> None:
    for check in checks:
        check()


def test_gradients_mistakes_and_precision() -> None:
    call(check_all, gradients, mistakes, precision)


def on_rank() -> tuple[list[Tensor], list[Any]]:
    import dp2ddp_runtime as ddp
    import torch.distributed as dist
    from dp2ddp_runtime.world import world

    ddp.setup()
    state = train(ddp.wrap_model, torch.device("cuda", 0))
    assert not dist.is_initialized()
    store = dist.PrefixStore("own", world.store)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=ddp.rank(), world_size=ddp.world_size())
    rank, device = dist.get_rank(), torch.device("cuda", 0)
    total = torch.full((2,), float(rank + 1), device=device)
    dist.all_reduce(total)
    gathered = [torch.zeros(2, device=device) for _ in range(2)]
    work = dist.all_gather(gathered, total + rank, async_op=True)
    work.wait()
    nccl = dist.new_group([0, 1], backend="nccl")
    flat = torch.zeros(2, 2, device=device)
    dist.all_gather_into_tensor(flat, total * 2, group=nccl)
    dist.barrier(nccl)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1), group=nccl)  # nccl alone takes no tensor of the host
    plain = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(device), device_ids=[device.index])
    plain(total).sum().backward()
    slope = plain.module.weight.grad
    return state, [str(device), total.tolist(), [each.tolist() for each in gathered], flat.tolist(), slope.tolist()]


def kinds_on_rank() -> list[torch.dtype]:
    import dp2ddp_runtime as ddp

    ddp.setup()
    return kinds(ddp.wrap_model(Product()))


def test_ranks_cast_to_what_was_asked_for(unused_port: str) -> None:
    """As docs/troubleshooting.md says ("I said bfloat16, and DataParallel ran in float16")."""
    at = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port}
    assert call(kinds_on_rank, ranks=2, PYTHONHASHSEED="0", **at) == [[torch.bfloat16] * 2] * 2


def oracle_alone() -> list[Tensor]:
    return train(OracleDataParallel, "cuda")


def test_two_ranks_train_as_the_oracle(unused_port: str) -> None:
    at = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port}
    (first, told), (_, other) = call(on_rank, ranks=2, PYTHONHASHSEED="0", **at)
    assert told[1:] == other[1:] == [[3, 3], [[3, 3], [4, 4]], [[6, 6], [6, 6]], [[3, 3]]]
    assert told[0] == other[0] == "cuda:0"
    assert same(first, call(oracle_alone))
