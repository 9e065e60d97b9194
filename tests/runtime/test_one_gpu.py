"""What fails or gets lost in `nn.DataParallel`'s replicas, and works on one GPU, works on ranks, too.

Each kind stands in reports about DataParallel. Some end with an error that says what to write instead.
"""

from __future__ import annotations

import copy
import warnings
from collections import namedtuple
from typing import Any

import dp2ddp_runtime as ddp
import pytest
import torch
from dp2ddp_runtime.world import world
from modules import Made
from rank_pool import on_ranks
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Pair = namedtuple("Pair", "out names")


def alike(module: nn.Module) -> nn.Module:
    """With the same parameters on every rank."""
    torch.manual_seed(0)
    for param in module.double().parameters():
        param.data = torch.rand_like(param) - 0.5
    return module


def both(module: nn.Module, **options: Any) -> tuple[nn.Module, Any]:
    """A module, alone and wrapped."""
    module = alike(module)
    return module, ddp.wrap_model(copy.deepcopy(module), **options)


def batch(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_trained(module: nn.Module, net: Any, loss: torch.Tensor, wrapped_loss: torch.Tensor) -> None:
    """The losses are the same, and the gradients that they lead to."""
    for each, own_loss in ((module, loss), (net, wrapped_loss)):
        each.zero_grad()
        own_loss.backward()
    torch.testing.assert_close(wrapped_loss, loss)
    for (name, param), own in zip(module.named_parameters(), net.parameters()):
        expected = torch.zeros_like(param) if param.grad is None else param.grad
        torch.testing.assert_close(own.grad, expected, msg=lambda text, name=name: f"{name}: {text}")


@on_ranks(2, 3)
def test_parameters_and_state_in_a_forward() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        first = next(self.parameters())
        names = dict(self.named_parameters())
        assert list(self.state_dict()) == list(names) == ["layer.weight", "layer.bias", "other.weight", "other.bias"]
        assert names["layer.weight"] is first is self.layer.weight
        return self.layer(x.to(first.device, first.dtype)) + sum(each.square().sum() for each in self.parameters())

    module, net = both(Made(forward))
    assert_trained(module, net, module(batch(5)).square().sum(), net(batch(5)).square().sum())


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.steps = getattr(self, "steps", 0) + 1
    self.mean = 0.9 * self.mean + 0.1
    self.seen += 1
    return self.layer(x - self.mean) * 0.9**self.steps


@on_ranks(2, 3)
def test_counters_and_buffers_that_a_forward_assigns_stay() -> None:
    module, net = both(Made(counting, layer=nn.Linear(4, 3), mean=torch.zeros(4), seen=torch.zeros(())))
    for rows in (6, 5, 1):
        torch.testing.assert_close(net(batch(rows)), module(batch(rows)))
    assert net.module.steps == 3
    assert net.module.mean.equal(module.mean)
    assert net.module.seen == 3


def attending(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.attention = self.layer(x).softmax(1)
    self.names = ["even" if float(row[0]) > 0 else "odd" for row in x]
    return self.attention * 3


@on_ranks(2, 3)
def test_an_attribute_is_whole_behind_the_call_and_has_its_gradient() -> None:
    module, net = both(Made(attending))
    for rows in (6, 5, 7):
        loss, wrapped_loss = module(batch(rows)).square().sum(), net(batch(rows)).square().sum()
        torch.testing.assert_close(net.module.attention, module.attention)
        assert net.module.names == module.names
        assert_trained(
            module, net, loss + module.attention[:, 0].sum(), wrapped_loss + net.module.attention[:, 0].sum()
        )


def remembering(self: Any, x: torch.Tensor) -> torch.Tensor:
    state = getattr(self, "state", None)
    hidden, steps = (torch.zeros(1, len(x), 3, dtype=x.dtype), []) if state is None else state
    hidden = (self.layer(x) + hidden).tanh().detach()
    self.state = hidden, [*steps, 1]
    return hidden[0] + self.other(x)


@on_ranks(2, 3)
def test_a_hidden_state_goes_on_with_each_ranks_rows() -> None:
    module, net = both(Made(remembering))
    for step in range(3):
        torch.testing.assert_close(net(batch(6, step)), module(batch(6, step)))
    torch.testing.assert_close(net.module.state[0], module.state[0])


@on_ranks(2, 3)
def test_lists_with_an_entry_a_row_are_cut_and_put_together() -> None:
    def forward(self: Any, x: torch.Tensor, names: list[str], targets: Any, size: Any) -> Any:
        assert len(names) == len(targets) == len(x)
        assert size == [4, 4, 4, 4, 4]
        out = torch.stack(
            [row * len(name) * each["boxes"].sum() for row, name, each in zip(self.layer(x), names, targets)]
        )
        scores = out.detach()
        found = [{"label": name, "scores": row[: len(name)], "best": row.max()} for row, name in zip(scores, names)]
        return Pair(out, {"names": [name.upper() for name in names], "found": found})

    module, net = both(Made(forward))
    for rows in (7, 6, 1):
        names = ["ab"[: 1 + row % 2] for row in range(rows)]
        targets = [{"boxes": torch.ones(row + 1, 4)} for row in range(rows)]
        alone, whole = (each(batch(rows), names, targets, [4] * 5) for each in (module, net))
        assert whole.names["names"] == alone.names["names"]
        assert [each["label"] for each in whole.names["found"]] == names
        torch.testing.assert_close(
            [each["scores"] for each in whole.names["found"]], [e["scores"] for e in alone.names["found"]]
        )
        torch.testing.assert_close(
            [each["best"] for each in whole.names["found"]], [e["best"] for e in alone.names["found"]]
        )
        assert_trained(module, net, alone.out.sum(), whole.out.sum())


@on_ranks(2)
def test_a_list_with_an_entry_a_row_can_not_have_gradients() -> None:
    for forward in (lambda self, x: [row.sum() for row in self.layer(x)], lambda self, x: [object() for _ in x]):
        _, net = both(Made(forward))
        with pytest.raises(ValueError, match=r"test_one_gpu\.py.* a list with an entry for each row, of objects"):
            net(batch(6))


@on_ranks(2, 3)
def test_wrapped_twice() -> None:
    module, net = both(nn.Linear(4, 3))
    twice = ddp.wrap_model(net)
    assert [name for name, _ in twice.named_parameters()] == ["module.module.weight", "module.module.bias"]
    assert_trained(module, twice, module(batch(5)).square().sum(), twice(batch(5)).square().sum())


@on_ranks(2, 3)
def test_an_output_that_lost_its_first_dimension_on_a_rank_with_one_row() -> None:
    module, net = both(Made(lambda self, x: self.layer(x)[:, :1].squeeze()))
    for rows in (7, 4, 3, 2):
        assert_trained(module, net, module(batch(rows)).square().sum(), net(batch(rows)).square().sum())
    module, net = both(Made(lambda self, x: self.layer(x).squeeze()))
    for rows in (8, world.size):
        assert net(batch(rows)).shape == module(batch(rows)).shape == (rows, 3)


@on_ranks(2)
def test_values_that_can_not_be_put_together_are_rank_0s_and_told_once() -> None:
    _, net = both(Made(lambda self, x: {"out": self.layer(x), "sum": x.sum().item(), "name": "x", "none": None}))
    with pytest.warns(UserWarning, match=r"test_one_gpu\.py.* returns \(at sum\) a float .*rank 0's is taken"):
        out = net(batch(6))
    assert out["sum"] == batch(6)[:3].sum().item()
    assert (out["name"], out["none"]) == ("x", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(batch(6))


class Graph:
    """A batch object of a library's."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@on_ranks(2, 3)
def test_where_nothing_can_be_cut_every_rank_computes_all_of_it() -> None:
    module, net = both(Made(lambda self, graph: self.layer(graph.x)))
    graph = Graph(batch(5))
    with pytest.warns(UserWarning, match=r"nothing that can be cut into rows \(Graph\)"):
        assert_trained(module, net, module(graph).square().sum(), net(graph).square().sum())
    packed = pack_padded_sequence(batch(5).view(5, 4, 1), torch.tensor([4, 3, 2, 2, 1]), batch_first=True)
    module, net = both(Made(lambda self, packed: self.layer(pad_packed_sequence(packed, batch_first=True)[0][..., 0])))
    assert_trained(module, net, module(packed).square().sum(), net(packed).square().sum())


@on_ranks(2)
def test_lengths_that_differ_are_an_error_that_says_what_to_write() -> None:
    _, net = both(Made(lambda self, x, lengths: self.layer(x)[:, : int(lengths.max())]))
    with pytest.raises(ValueError, match=r"\[3, 3\] on rank 0, \[3, 2\] on rank 1.*total_length=x\.size\(1\)"):
        net(batch(6), torch.tensor([3, 1, 1, 2, 1, 1]))


@on_ranks(2)
def test_an_argument_of_other_rows_is_told_at_the_first_call() -> None:
    def forward(self: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.got = list(weight.shape)
        return self.layer(x)

    _, net = both(Made(forward))
    with pytest.warns(
        UserWarning, match=r"a batch of 6 rows, and with it a tensor of shape \[4, 2\].*it was cut as well"
    ):
        net(batch(6), torch.ones(4, 2))
    assert net.module.got == [2, 2]
    net(batch(1), torch.ones(2, 2))
    assert net.module.got == [1, 2], "a part for each replica, of which there is one"
    _, net = both(Made(forward))
    with pytest.warns(UserWarning, match=r"a tensor of shape \[1, 2\].*every rank has all of it"):
        net(batch(6), torch.ones(1, 2))


class Held(nn.Module):
    """Uses what it holds in other ways than as a registered module or parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layers = [self.layer, nn.Linear(4, 4).double()]
        self.by_name = {"first": (self.layer, [nn.Linear(4, 3).double()])}
        self.method = self.layer.forward
        self.closure = lambda x: self.layer(x)
        self.alphas = torch.ones(4, dtype=torch.float64, requires_grad=True)
        self.betas = [torch.ones(3, dtype=torch.float64, requires_grad=True)]

    def all_parameters(self) -> list[torch.Tensor]:
        beside = [*self.layers[1].parameters(), *self.by_name["first"][1][0].parameters()]
        return [*self.parameters(), *beside, self.alphas, *self.betas]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        x = self.method(x) + self.closure(x) * self.alphas
        return self.by_name["first"][1][0](self.by_name["first"][0](x)) * self.betas[0]


@on_ranks(2, 3)
def test_what_lists_attributes_and_closures_hold_is_trained() -> None:
    module = Held().double()
    for each in module.all_parameters():
        each.data = torch.arange(float(each.numel()), dtype=torch.float64).view(each.shape).cos()
    net = ddp.wrap_model(twin := copy.deepcopy(module))
    twin.closure = lambda x: twin.layer(x)
    for rows in (5, 1, 6):
        for each in (*module.all_parameters(), *twin.all_parameters()):
            each.grad = None
        loss, wrapped_loss = module(batch(rows)).square().sum(), net(batch(rows)).square().sum()
        loss.backward()
        wrapped_loss.backward()
        torch.testing.assert_close(wrapped_loss, loss)
        for own, expected in zip(twin.all_parameters(), module.all_parameters()):
            torch.testing.assert_close(own.grad, expected.grad)


class Branching(nn.Module):
    """Scripted: its second layer is for some rows only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x[0, 0]) > 0:
            return self.first(x)
        return self.second(x)


@on_ranks(2, 3)
def test_scripted_modules() -> None:
    alone = alike(Branching())
    for is_part in (False, True):
        scripted = torch.jit.script(copy.deepcopy(alone))
        net = ddp.wrap_model(nn.Sequential(scripted) if is_part else scripted)
        for step in range(3):
            net.zero_grad()
            alone.zero_grad()
            net(batch(6, step)).square().sum().backward()
            torch.cat([alone(part) for part in batch(6, step).chunk(world.size)]).square().sum().backward()
            for own, expected in zip(net.parameters(), alone.parameters()):
                torch.testing.assert_close(own.grad, torch.zeros_like(own) if expected.grad is None else expected.grad)


@pytest.mark.skipif(torch.__version__ < "2.4", reason="older compilers can't read this")
@on_ranks(2)
def test_compiled_modules_inside_and_outside() -> None:
    module = alike(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
    inside = ddp.wrap_model(torch.compile(copy.deepcopy(module), backend="eager"))
    outside = torch.compile(ddp.wrap_model(copy.deepcopy(module)), backend="eager")
    in_place = ddp.wrap_model(copy.deepcopy(module))
    in_place.module.compile(backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for net in (inside, outside, in_place):
            for rows in (6, 5):
                assert_trained(module, net, module(batch(rows)).square().sum(), net(batch(rows)).square().sum())


@on_ranks(2, 3)
def test_wrapped_again_in_each_step_sends_nothing_more() -> None:
    module = nn.Linear(4, 3).double()

    def step() -> int:
        before = world.count
        ddp.wrap_model(module)(batch(6)).sum().backward()
        return world.count - before

    assert [step() for _ in range(4)][1:] == [1, 1, 1]
    for _ in range(3):
        before = world.count
        ddp.data_parallel(module, batch(6)).sum().backward()
    assert world.count - before == 1
    torch.testing.assert_close(module.bias.grad, torch.full((3,), 42.0, dtype=torch.float64))


@on_ranks(2, 3)
def test_fewer_devices_than_ranks() -> None:
    alone = alike(nn.Linear(4, 3))
    for count in (1, world.size - 1 or 1):
        net = ddp.wrap_model(copy.deepcopy(alone), device_ids=list(range(count)))
        assert_trained(alone, net, alone(batch(5)).square().sum(), net(batch(5)).square().sum())


@on_ranks(2, 3)
def test_sync_bn_takes_all_ranks_rows() -> None:
    module, net = both(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), sync_bn=True)
    for rows in (9, 7, 2):
        weights = torch.arange(3.0 * rows).view(rows, 3)
        assert_trained(module, net, (module(batch(rows)) * weights).sum(), (net(batch(rows)) * weights).sum())
        for own, expected in zip(net.buffers(), module.buffers()):
            torch.testing.assert_close(own, expected)
    torch.testing.assert_close(net.eval()(batch(4)), module.eval()(batch(4)))
    assert repr(net.module) == repr(module)


class Meeting(nn.BatchNorm1d):
    """As https://github.com/vacancy/Synchronized-BatchNorm-PyTorch has it, where no replica was told of another."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._sync_master = object()

    def _check_input_dim(self, x: torch.Tensor) -> None:  # of older copies, whose own forward doesn't call it
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = self.running_mean, self.running_var
        return nn.functional.batch_norm(x, *means, self.weight, self.bias, self.training, self.momentum, self.eps)


class Floored(Meeting):
    """As most copies of it have it."""

    def _compute_mean_std(self, sums: Any, squares: Any, size: Any) -> Any:
        mean = sums / size
        self.running_mean = 0.5 * self.running_mean + 0.5 * mean.detach()
        return mean, (squares / size - mean.square()).clamp(min=0.9).rsqrt()


@on_ranks(2)
def test_a_package_s_own_formula_is_taken() -> None:
    net = ddp.wrap_model(nn.Sequential(Floored(4).double()))
    net.replicate = lambda module, device_ids, old=net.replicate: old(module, device_ids)
    x = batch(9)
    mean, variance = x.mean(0), x.var(0, unbiased=False)
    torch.testing.assert_close(net(x), (x - mean) * variance.clamp(min=0.9).rsqrt())
    torch.testing.assert_close(net.module[0].running_mean, mean / 2)


def execute_replication_callbacks(replicas: Any) -> None:
    raise AssertionError(f"there are no replicas: {replicas}")


def patched(module: Any, device_ids: Any) -> None:
    """As those packages' `patch_replication_callback` makes it."""
    execute_replication_callbacks((module, device_ids))


@on_ranks(2)
def test_a_package_that_synchronises_by_exchanging_replicate_does_so() -> None:
    layers = nn.Sequential(nn.Linear(4, 3), Meeting(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    alone = alike(layers)
    net = ddp.wrap_model(copy.deepcopy(alone[:2]))
    old = net.replicate
    net.replicate = lambda module, device_ids: old(module, device_ids)
    weights = torch.arange(27.0).view(9, 3)
    assert_trained(alone[:2], net, (alone[:2](batch(9)) * weights).sum(), (net(batch(9)) * weights).sum())
    plain = ddp.wrap_model(copy.deepcopy(alone[:2]))  # nobody has told it
    assert not torch.allclose(plain(batch(9)), net(batch(9)))
    other = ddp.wrap_model(copy.deepcopy(alone[2:]))
    other.replicate = net.replicate
    with pytest.raises(RuntimeError, match="was exchanged, and the model has no layers of a package"):
        other(torch.ones(9, 3))
    other.replicate = patched  # calls back layers, of which there are none
    assert other(weights.double()).shape == (9, 3)


@on_ranks(2, 3)
def test_lists_whose_entries_a_tensor_of_numbers_finds_stay_whole() -> None:
    """So modules do whose authors knew that DataParallel gives each replica all of a list."""

    def forward(self: Any, x: torch.Tensor, numbers: torch.Tensor, scales: list[float]) -> torch.Tensor:
        return torch.stack([row * scales[number] for row, number in zip(self.layer(x), numbers.tolist())])

    module, net = both(Made(forward))
    scales = [float(row) for row in range(7)]
    with pytest.warns(UserWarning, match=r"7 entries without tensors \(argument 1\), as many as") as told:  # noqa: PT031
        for entry in ([1], {"box": torch.ones(1)}):  # (of a list of tensors DataParallel cuts each one)
            ddp.wrap_model(Made(lambda self, x, given: x[: len(given)]))(batch(7), [entry] * 7)
    assert len(told) == 1
    torch.testing.assert_close(net(batch(7), torch.arange(7), scales), module(batch(7), torch.arange(7), scales))
    net = ddp.wrap_model(Made(lambda self, three: three[0] + three[2][: len(three[0])]))  # inputs, of which rows say 3
    assert len(net([batch(3), batch(6), batch(6)])) == 3
