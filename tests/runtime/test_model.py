"""The wrapped model does what `nn.DataParallel` does: what random programs don't have is compared here."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import dp2ddp_runtime as ddp
import pytest
import torch
import torch.distributed as dist
from dp2ddp_runtime import gradients
from dp2ddp_runtime import model as models
from dp2ddp_runtime.world import exchange, world
from modules import Made
from rank_pool import RankPool, on_ranks
from scenarios import SCENARIOS, Tensors, run_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

_results: list[dict[str, Tensors]] = []


def run_on_ranks() -> dict[str, Tensors]:
    with mock.patch.object(gradients, "BUCKETS", [100, 200]):  # several buckets for small models, too
        return run_all(models.wrap_model)


def results(ranks: RankPool) -> list[dict[str, Tensors]]:
    if not _results:
        emulated = run_all(lambda module, dim=0: EmulatedDataParallel(module, dim=dim, n=3))
        _results.extend([emulated, *ranks(3, run_on_ranks)])
    return _results


def assert_same(got: Any, expected: Any, what: str, exact: bool) -> None:
    if expected is None or got is None:
        assert got is expected, what
        return
    assert got.shape == expected.shape, what
    assert got.dtype == expected.dtype, what
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if got.dtype in (torch.double, torch.complex128) else {}
    if got.dtype == torch.float32:  # only where bfloat16 is in the way of the gradients
        tolerance = {"rtol": 2e-2, "atol": 1e-3}
    if exact or not (got.is_floating_point() or got.is_complex()):
        assert torch.equal(got, expected), what
    else:
        torch.testing.assert_close(got, expected, **tolerance, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_it_is_data_parallel(ranks: RankPool, name: str) -> None:
    """On three ranks, of which some have no rows now and then."""
    if torch.__version__ < "2.2" and name == "buffers_changed_where_a_checkpoint_runs_the_model_again":
        pytest.skip("torch 2.1 doesn't tell whether there is a checkpoint: other ranks' buffers wait for a forward")
    expected, *per_rank = (result[name] for result in results(ranks))
    for index, value in enumerate(expected):
        assert_same(per_rank[0][index], value, f"{name}[{index}]", exact=False)
        for other in per_rank[1:]:
            assert_same(other[index], per_rank[0][index], f"{name}[{index}] on other ranks", exact=True)


@on_ranks(1, 2)
def test_it_is_a_distributed_data_parallel_with_rank_0s_values() -> None:
    torch.manual_seed(world.rank)
    net = models.wrap_model(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert isinstance(net, DistributedDataParallel)
    assert isinstance(net, models.WrappedModel)
    assert next(iter(net.state_dict())) == "module.0.weight"
    assert f"{type(net).__name__}: {net}" == f"DataParallel: {nn.DataParallel(net.module)}", "as the original prints"
    values = [value.tolist() for value in net.state_dict().values()]
    assert values == ranks_agree(values), "rank 0's values at the start"

    plain = {name[len("module.") :]: value + 1 for name, value in net.state_dict().items()}
    ddp.load_state_dict(net, plain)
    net.load_state_dict({f"module.{name}": value for name, value in plain.items()})
    assert net.module[0].bias.equal(plain["0.bias"])

    twin = copy.deepcopy(net)
    assert isinstance(twin, models.WrappedModel)
    twin(torch.ones(4, 3)).sum().backward()
    assert twin.module[0].weight.grad is not None
    assert net.module[0].weight.grad is None


def ranks_agree(value: Any) -> Any:
    told = [each.value for each in exchange("a test", value)]
    assert all(part == told[0] for part in told)
    return told[0]


def differing(kind: str) -> str:
    torch.manual_seed(0)
    net = nn.Linear(3, 2 + (kind == "shape" and world.rank))
    try:
        wrapped = models.wrap_model(net)
        if kind == "value" and world.rank == 1:
            net.bias.data[1] = torch.nextafter(net.bias.data[1], torch.tensor(9.0))
        wrapped(torch.rand(2, 3, generator=torch.Generator().manual_seed(0))).sum().backward()
        torch.optim.SGD(wrapped.parameters(), 0.1).step()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_ranks_whose_models_differ_are_told_apart(ranks: RankPool) -> None:
    for kind, message in (
        ("shape", "names, shapes or dtypes"),
        ("value", "a parameter of shape [2] differs between the ranks"),
    ):
        assert all(message in told for told in ranks(2, differing, kind))
    assert ranks(2, differing, "nothing") == ["no error"] * 2


def test_only_modules_are_wrapped() -> None:
    with pytest.raises(TypeError, match="SGD"):
        models.wrap_model(torch.optim.SGD([torch.zeros(1)], 0.1))  # type: ignore[arg-type]
    module = nn.Linear(1, 1)
    assert models.wrap_model(nn.DataParallel(module)).module.module is module, "out of a checkpoint, and wrapped again"


class _Conditional(nn.BatchNorm1d):
    def forward(self, input: torch.Tensor, gain: torch.Tensor | None = None) -> torch.Tensor:
        normalised = super().forward(input)
        return normalised if gain is None else normalised * gain


def test_sync_bn_for_a_layer_that_takes_more_than_its_input_is_an_error_without_cuda_too() -> None:
    module = nn.Sequential(nn.Linear(2, 2), _Conditional(2))
    with pytest.raises(TypeError, match=r"can't take the place of 1 \(_Conditional\), which has a forward of its own"):
        models.wrap_model(module, sync_bn=True)
    models.wrap_model(module)


class Open(models.WrappedModel):
    """What scripts derive from `nn.DataParallel` to reach the model's attributes without `.module`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


@on_ranks(1, 2)
def test_the_class_takes_data_parallels_arguments_and_may_be_derived_from() -> None:
    net = models.WrappedModel(nn.Linear(3, 2), [0, 1], 0)
    x = torch.arange(15.0).view(5, 3)
    assert net(x).shape == (5, 2)
    opened = Open(nn.Linear(3, 2), device_ids=[0, 1], output_device=0)
    assert opened.in_features == 3
    assert opened(x).shape == (5, 2)
    opened(x).sum().backward()
    assert opened.weight.grad.tolist() == ranks_agree(opened.weight.grad.tolist())
    twin = copy.deepcopy(opened)
    assert type(twin) is Open
    assert twin.out_features == 2
    assert repr(opened).startswith("Open(")
    with pytest.raises(AttributeError):
        opened.nothing  # noqa: B018
    with pytest.raises(TypeError, match="SGD"):
        models.WrappedModel(torch.optim.SGD(net.parameters(), 0.1))  # type: ignore[arg-type]


def saved() -> bytes:
    net = models.wrap_model(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    net(torch.ones(4, 3)).sum().backward()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(net, file)
    return file.getvalue()


def test_a_pickled_model_is_a_data_parallel_that_needs_no_runtime(ranks: RankPool, tmp_path: Path) -> None:
    for n in (1, 2):
        (tmp_path / f"net{n}.pt").write_bytes(ranks(n, saved)[0])
    code = """if True:
        import sys, torch
        for path in ("net1.pt", "net2.pt"):
            net = torch.load(path, weights_only=False)
            assert type(net) is torch.nn.DataParallel, type(net)
            assert net.device_ids == [] and list(net.state_dict())[0] == "module.0.weight"
            net(torch.ones(4, 3)).sum().backward()
            assert net.module[0].weight.grad is not None
        assert not any(name.startswith("dp2ddp") for name in sys.modules)
        """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@on_ranks(2)
def test_outputs_of_different_lengths_are_an_error() -> None:
    net = models.wrap_model(Made(lambda self, x: (x,) if world.rank == 0 else (x, x, x)))
    with pytest.raises(RuntimeError, match="returned lists or dicts with other entries"):
        net(torch.arange(4.0))


def test_functional_form_alone_is_the_module() -> None:
    module, x = nn.Linear(4, 5), torch.randn(3, 4)
    assert torch.equal(ddp.data_parallel(module, (x,)), copy.deepcopy(module)(x))


class Collecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.sizes = [3, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return x


@on_ranks(2, each=["Collecting.seen"])
def test_a_list_that_forwards_append_to_is_told_of_once() -> list[str]:
    net = ddp.wrap_model(Collecting())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            net(torch.ones(6, 3))
    return [str(each.message).partition("appends to ")[2].partition(":")[0] for each in caught]


@on_ranks(2, each=[False, True])
def test_torch_says_what_it_says_without_a_group() -> list[Any]:
    """The original's answers, and its errors."""
    with pytest.raises((RuntimeError, ValueError), match="Default process group has not been initialized"):
        dist.get_rank()
    layer = nn.SyncBatchNorm(2)  # would say that it wants a GPU
    normal = layer(torch.rand(4, 2, generator=torch.Generator().manual_seed(0)))
    return [dist.is_initialized(), normal.mean().abs().item() < 1e-6]
