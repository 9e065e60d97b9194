"""What scripts do with a wrapped model, each as a function of the wrapper that returns the tensors to compare.

The wrapper is the runtime's on ranks, and the oracle's in the test's own process.
"""

from __future__ import annotations

import copy
import random
from collections import namedtuple
from typing import Any, Callable

import numpy as np
import torch
from dp2ddp_runtime.ranks import rng
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

Tensors = list[Any]
Wrapper = Callable[..., Any]
Scenario = Callable[[Wrapper], Tensors]

SCENARIOS: dict[str, Scenario] = {}
Pair = namedtuple("Pair", "left right")


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def grads(net: nn.Module) -> Tensors:
    return [None if param.grad is None else param.grad.clone() for param in net.parameters()]


def mlp(inputs: int = 4, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


class Function(nn.Module):
    """A module with one layer and a forward given as a function."""

    def __init__(self, fn: Callable[..., Any], inputs: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.other = nn.Linear(inputs, outputs)
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self, *args, **kwargs)


@scenario
def nested_values(wrap: Wrapper) -> Tensors:
    def forward(self: Any, x: Any, pair: Pair, *, scale: float, extra: dict[str, Any]) -> Any:
        out = self.layer(x[0]) * scale + pair.right
        return {"a": (out, extra["z"]), "b": Pair([out.sum()], None), "c": out.argmax(1), "d": out > 0}

    net = wrap(Function(forward))
    x, y, z = torch.rand(7, 4), torch.rand(7, 3), torch.rand(3, 7).t()
    out = net([x, "text"], Pair(1, y), scale=2.0, extra={"z": z})
    (out["a"][0].square().sum() + out["b"].left[0].prod()).backward()
    return [out["a"][0], out["a"][1], out["b"].left[0], out["c"], out["d"], *grads(net)]


@scenario
def scalar_losses(wrap: Wrapper) -> Tensors:
    net = wrap(Function(lambda self, x, y: (F.mse_loss(self.layer(x), y), self.layer(x))))
    result = []
    for rows in (6, 5, 2, 1):
        x, y = torch.rand(rows, 4), torch.rand(rows, 3)
        loss, out = net(x, y)
        (loss.mean() + 0.3 * loss.sum() + out.std()).backward()
        result += [loss, out, *grads(net)]
    return result


@scenario
def fewer_rows_than_replicas(wrap: Wrapper) -> Tensors:
    net = wrap(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)))
    result = []
    for rows in (4, 2, 8):
        out = net(torch.rand(rows, 4)) if rows > 2 else net.eval()(torch.rand(rows, 4))
        net.train()
        out.square().mean().backward()
        result += [out, *grads(net), *net.buffers()]
    return result


@scenario
def layers_that_would_synchronise(wrap: Wrapper) -> Tensors:
    """`SyncBatchNorm` is BatchNorm where no process group is, as with `nn.DataParallel`; beside a wrapped part, too."""

    class Parted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.SyncBatchNorm(4)
            self.part = wrap(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4, momentum=None)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(self.norm(x)).square()

    net = Parted()
    result = []
    for rows in (9, 8):
        out = net(torch.rand(rows, 4))
        out.mean().backward()
        result += [out, *grads(net), *net.buffers()]
    return [*result, net.eval()(torch.rand(3, 4))]


@scenario
def another_dimension(wrap: Wrapper) -> Tensors:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 3)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> Any:
            self.rnn.flatten_parameters()
            return self.rnn(x, hidden)

    net = wrap(Recurrent(), dim=1)
    out, hidden = net(torch.rand(6, 5, 4), torch.zeros(1, 5, 3))
    out, hidden = net(torch.rand(6, 5, 4), hidden)
    (out.sum() * hidden.mean()).backward()
    return [out, hidden, *grads(net)]


@scenario
def adversarial_pair(wrap: Wrapper) -> Tensors:
    generator, critic = wrap(mlp(2, 4)), wrap(nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(), nn.Linear(5, 1)))
    steps = [torch.optim.SGD(net.parameters(), 0.1) for net in (generator, critic)]
    result: Tensors = []
    for rows in (6, 5, 2):
        real, noise = torch.rand(rows, 4), torch.rand(rows, 2)
        fake = generator(noise)
        steps[1].zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        steps[1].step()
        for param in critic.parameters():
            param.requires_grad_(False)
        steps[0].zero_grad()
        (-critic(fake).mean()).backward()
        steps[0].step()
        for param in critic.parameters():
            param.requires_grad_(True)
        result += [*grads(generator), *generator.state_dict().values(), *critic.state_dict().values()]
    return result


@scenario
def two_backwards_through_both_models(wrap: Wrapper) -> Tensors:
    generator, critic = wrap(mlp(2, 4)), wrap(mlp(4, 1))
    fake = generator(torch.rand(5, 2))
    loss_critic = critic(fake).mean()
    loss_generator = critic(fake).square().mean() + critic(torch.rand(5, 4)).mean()
    loss_critic.backward(retain_graph=True)
    loss_generator.backward()
    return [*grads(generator), *grads(critic)]


@scenario
def gradient_penalty(wrap: Wrapper) -> Tensors:
    net = wrap(mlp(4, 1))
    result: Tensors = []
    for rows in (6, 4, 1):
        x = torch.rand(rows, 4, requires_grad=True)
        out = net(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + (slope.norm(2, 1) - 1).square().mean()).backward()
        assert x.grad is not None
        result += [slope, x.grad.clone(), *grads(net)]
    return result


@scenario
def penalty_in_a_backward_of_its_own(wrap: Wrapper) -> Tensors:
    """As WGAN-GP's, and with a nonlinearity behind the model; through two models."""
    result: Tensors = []
    for link in (lambda out: out, F.softplus):
        net, other = wrap(mlp(4, 1)), wrap(nn.Linear(4, 4))
        for rows in (6, 5, 1):
            x = torch.rand(rows, 4, requires_grad=True)
            (-net(x.detach()).mean()).backward()
            (slope,) = torch.autograd.grad(link(net(other(x))).sum(), x, create_graph=True)
            ((slope.norm(2, 1) - 1) ** 2).mean().backward()
            result += [slope, *grads(net), *grads(other)]
    return result


@scenario
def adaptive_weight_of_a_loss(wrap: Wrapper) -> Tensors:
    """VQGAN's: by the last layer's gradients, which are asked for."""
    net = wrap(mlp())
    last = net.module[2].weight
    result: Tensors = []
    for rows in (6, 5):
        out = net(torch.rand(rows, 4))
        fit, regular = out.square().mean(), out.abs().sum()
        norms = [torch.autograd.grad(each, last, retain_graph=True)[0].norm() for each in (fit, regular)]
        (fit + (norms[0] / norms[1]).detach() * regular).backward()
        result += [*norms, *grads(net)]
    return result


@scenario
def higher_orders(wrap: Wrapper) -> Tensors:
    """A Hessian-vector product, a penalty on the gradient's norm, and a third derivative."""
    net = wrap(nn.Sequential(nn.Linear(4, 3), nn.Softplus(), nn.Linear(3, 1)))
    params = list(net.parameters())
    x, y = torch.rand(5, 4), torch.rand(5, 1)
    first = torch.autograd.grad(F.mse_loss(net(x), y), params, create_graph=True)
    product = torch.autograd.grad(first, params, [torch.ones_like(each) for each in params], retain_graph=True)
    sum((each.square().sum() for each in first), torch.tensor(0.0)).backward()
    result: Tensors = [*first, *product, *grads(net)]
    value: Any = net(x).exp().sum()
    for _ in range(3):
        (slope,) = torch.autograd.grad(value, params[0], create_graph=True)
        value = slope.square().sum()
    return [*result, *grads(net), slope]


@scenario
def a_hook_that_forward_registers(wrap: Wrapper) -> Tensors:
    """As implicit layers do: backward finds what forward has assigned, and takes it away."""

    class Implicit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                fixed = x
                for _ in range(5):
                    fixed = torch.tanh(self.layer(fixed) / 4)
            new = torch.tanh(self.layer(fixed) / 4)
            again = new.detach().clone().requires_grad_()
            value = torch.tanh(self.layer(again) / 4)

            def solve(grad: torch.Tensor) -> torch.Tensor:
                self.hook.remove()
                return grad + torch.autograd.grad(value, again, grad, retain_graph=True)[0]

            if new.requires_grad:
                self.hook = new.register_hook(solve)
            return new

    net = wrap(Implicit())
    result: Tensors = []
    for rows in (6, 5, 1):
        net(torch.rand(rows, 4)).square().sum().backward()
        assert not hasattr(net.module, "hook")
        result += grads(net)
    return result


@scenario
def decay_of_what_forward_leaves_out(wrap: Wrapper) -> Tensors:
    """An unused layer's gradient is zeros, so AdamW's decay and momentum change it."""
    net = wrap(Function(lambda self, x: self.layer(x)))
    optimizer = torch.optim.AdamW(net.parameters(), 0.1, weight_decay=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        net(torch.rand(5, 4)).square().sum().backward()
        optimizer.step()
    return [*grads(net), *net.state_dict().values()]


@scenario
def forward_that_replaces_a_trained_weights_data(wrap: Wrapper) -> Tensors:
    """As binary networks do: in a replica that is forgotten with its graph."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.layer.weight.data = self.layer.weight.data.sign()
        return self.layer(x)

    net = wrap(Function(forward))
    result: Tensors = []
    for _ in range(3):
        net(torch.rand(6, 4)).square().sum().backward()
        with torch.no_grad():
            net.module.layer.weight -= 0.1 * net.module.layer.weight.grad
        result += [*grads(net), *net.state_dict().values()]
    return result


@scenario
def forward_that_replaces_data_as_its_rows_say(wrap: Wrapper) -> Tensors:
    """On some replicas only, with several forwards between two steps."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 10:
            self.other.weight.data = self.other.weight.data * 2
        return self.layer(x) + self.other(x)

    net = wrap(Function(forward))
    result: Tensors = []
    for who in (0, 4, 3, 6):
        x = torch.rand(8, 4)
        x[who, 0] = 11
        net.zero_grad()
        (net(torch.rand(8, 4)).square().sum() + net(x).sum() + net(x * 0.1).sum()).backward()
        result += grads(net)
    return result


@scenario
def backward_inside_forward(wrap: Wrapper) -> Tensors:
    """Each replica takes the gradients of its own loss; they add up, with those that are there, too."""

    def forward(self: Any, x: torch.Tensor, mode: str) -> torch.Tensor:
        loss = self.layer(x).square().mean() + (self.other(x).exp().mean() if mode != "one" else 0)
        if mode != "outside":
            loss.backward(retain_graph=mode == "twice")
        if mode == "twice":
            torch.autograd.backward([3 * loss])
        return loss if mode == "outside" else loss.detach()

    net = wrap(Function(forward))
    result: Tensors = []
    for rows, mode in ((6, "one"), (7, "both"), (4, "outside"), (1, "both"), (5, "twice"), (4, "outside"), (2, "one")):
        loss = net(torch.rand(rows, 4), mode)
        if mode == "outside":
            loss.mean().backward()
        result += [loss, *grads(net)]
    return result


@scenario
def gradients_written_by_hand(wrap: Wrapper) -> Tensors:
    """With a graph, as old scripts decay weights; exchanged, kept, and set to zero in place."""
    net = wrap(mlp())
    result: Tensors = []
    kept: Tensors = []
    for step in range(6):
        net(torch.rand(5, 4)).square().mean().backward()
        for param in net.parameters():
            assert param.grad is not None
            if step == 1:
                param.grad += 0.1 * param
                param.grad = param.grad.detach()
            elif step == 2:
                param.grad.data.add_(param.data)
            kept.append(param.grad)
            if step % 2:
                param.grad = None
            else:
                param.grad.zero_()
        result += [each.clone() for each in kept]
    return result


@scenario
def gradient_accumulation(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    result: Tensors = []
    for step in range(6):
        (net(torch.rand(5, 4)).square().mean() / 3).backward()
        result += grads(net)
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 2)
    return [*result, *net.state_dict().values()]


@scenario
def unused_parameters(wrap: Wrapper) -> Tensors:
    # `other` is used by replicas whose rows say so: with 7 rows on 2 or 3 replicas by the first one alone.
    def forward(self: Any, x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (self.other(x) if flags.any() else 0)

    net = wrap(Function(forward))
    result: Tensors = []
    for first in (False, True, False):
        flags = torch.zeros(7, dtype=torch.bool)
        flags[0] = first
        net(torch.rand(7, 4), flags).square().mean().backward()
        result += grads(net)
    return result


@scenario
def a_loss_that_reaches_some_replicas_only(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    net(torch.rand(6, 4))[0].sum().backward()
    return grads(net)


@scenario
def frozen_then_thawed(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    result: Tensors = []
    for trained in (["0.weight"], [], ["2.bias", "0.weight"], ["0.bias"]):
        for name, param in net.module.named_parameters():
            param.requires_grad_(name in trained)
        out = net(torch.rand(5, 4))
        if out.requires_grad:
            out.square().mean().backward()
        result += grads(net)
    return result


@scenario
def replaced_layer(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    net(torch.rand(5, 4)).sum().backward()
    net.module[2] = nn.Linear(5, 2)
    net(torch.rand(5, 4)).square().sum().backward()
    return grads(net)


@scenario
def checkpointing(wrap: Wrapper) -> Tensors:
    result: Tensors = []
    for reentrant in (True, False):

        def forward(self: Any, x: torch.Tensor, reentrant: bool = reentrant) -> torch.Tensor:
            hidden = checkpoint(lambda v: torch.tanh(self.layer(v)), self.other(x), use_reentrant=reentrant)
            return checkpoint(lambda v: torch.tanh(self.other(v)), hidden, use_reentrant=reentrant)

        net = wrap(Function(forward, 4, 4))
        if reentrant:  # a parameter that is reached both inside and outside reentrant backwards is told to the user
            net.module.fn = lambda self, x: checkpoint(lambda v: torch.tanh(self.layer(v)), x * 1, use_reentrant=True)
        x = torch.rand(5, 4, requires_grad=True)
        net(x).square().sum().backward()
        result += [x.grad, *grads(net)]
    return result


@scenario
def contrastive_and_regularised(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    for _ in range(2):
        views = net(torch.cat([torch.rand(5, 4), torch.rand(5, 4)]))
        z = F.normalize(views, dim=1)
        loss = F.cross_entropy(z[:5] @ z[5:].t(), torch.arange(5))
        penalty = sum((param.square().sum() for param in net.parameters()), torch.tensor(0.0))
        (loss + 0.1 * penalty).backward()
    penalty = sum((param.abs().sum() for param in net.module[0].parameters()), torch.tensor(0.0))
    penalty.backward()
    return grads(net)


@scenario
def gradients_of_parameters_asked_for(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    net(torch.rand(5, 4)).sum().backward()
    before = grads(net)
    loss = net(torch.rand(5, 4)).square().sum()
    torch.autograd.grad(loss, torch.zeros(1, requires_grad=True), allow_unused=True)
    asked = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    after = grads(net)
    assert all(a.equal(b) for a, b in zip(before, after))
    assert len(asked) == len(after)
    loss.backward()
    return grads(net)


@scenario
def evaluation_and_statistics(wrap: Wrapper) -> Tensors:
    net = wrap(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None), nn.Dropout(0.3)))
    result: Tensors = []
    for rows in (6, 8):
        with torch.no_grad():
            result += [net(torch.rand(rows, 4))]
        result += [net(torch.rand(rows, 4)), *net.buffers()]
        net.eval()
        with torch.no_grad():
            result += [net(torch.rand(1, 4)), net(torch.rand(rows, 4))]
        with torch.inference_mode():
            result += [net(torch.rand(rows, 4)).clone()]
        net.train()
    return result


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("added", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.added += x.detach().sum()
        self.replaced = self.replaced + 1
        return x + self.added + self.replaced


@scenario
def buffers_changed_and_replaced(wrap: Wrapper) -> Tensors:
    net = wrap(Counting())
    return [value.clone() for _ in range(3) for value in (net(torch.rand(5, 2)), *net.buffers())]


@scenario
def buffers_changed_where_a_checkpoint_runs_the_model_again(wrap: Wrapper) -> Tensors:
    """A single row's replica does so itself, and stops before its forward is over."""
    net = wrap(nn.Sequential(nn.Dropout(0.5), Counting(), nn.Linear(4, 2), nn.Tanh()))
    result: Tensors = []
    for rows in (5, 1, 1, 6):
        x = torch.rand(rows, 4, requires_grad=True)
        checkpoint(net, x, use_reentrant=False).square().sum().backward()
        result += [x.grad, *grads(net), *(value.clone() for value in net.buffers())]
    return result


class Sloppy(nn.Module):
    """Assigns to itself in its forward, and writes in place: only that, of its first replica, is to stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.code = nn.Embedding(4, 4)
        self.u = nn.Parameter(torch.rand(4), requires_grad=False)
        self.bank = nn.Parameter(torch.zeros(3, 4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("late", torch.zeros(4))
        self.gain = nn.Parameter(torch.rand(4))
        self.steps = 0
        self.layer.last = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = F.normalize(self.layer.weight.data @ self.u.data, dim=0)
        self.u.data = F.normalize(self.layer.weight.data.t() @ v, dim=0)
        mean = x.detach().mean(0)
        self.bank.data[self.steps % 3] += mean
        self.gain.data.mul_(0.9)
        self.seen.mul_(0.9).add_(mean)
        self.late.data = self.late + mean
        out = self.layer(x) / self.u.norm() + self.bank.sum(0) + self.seen + self.late + self.layer.last + self.steps
        self.steps += 1
        self.layer.last = mean
        if not hasattr(self, "more"):
            self.more = nn.Linear(4, 4)
        self.code.weight = nn.Parameter(self.code.weight * 0.5)
        self.register_buffer("another", mean)
        return (out + self.code.weight[0] + v) * self.bank.mean(0) * self.seen * self.gain


@scenario
def side_effects_of_forward(wrap: Wrapper) -> Tensors:
    net = wrap(Sloppy())
    result: Tensors = []
    for step in range(12):
        if step in (3, 5):
            net.train(step == 5)
        with torch.set_grad_enabled(step != 4):
            out = net(torch.rand(6 if step != 7 else 1, 4))
        if out.requires_grad:
            out.pow(2).sum().backward()
            with torch.no_grad():
                net.module.layer.weight -= 0.01 * net.module.layer.weight.grad
        module = net.module
        result += [out, *grads(net), *(value.clone() for value in net.state_dict().values()), module.layer.last]
        result += [torch.tensor([module.steps, hasattr(module, "more")])]
    return result


@scenario
def kinds_of_tensors(wrap: Wrapper) -> Tensors:
    def forward(self: Any, x: torch.Tensor) -> Any:
        out = self.layer(x)
        empty = x[:, :0]
        turned = torch.rand(3, len(x)).t()
        return out.bfloat16(), out.to(torch.complex64).conj(), x > 0.5, x.long(), empty, turned, x.half(), x[:1, 0]

    net = wrap(Function(forward))
    out = net(torch.rand(7, 4))
    out[1].abs().sum().backward()
    return [*out, *grads(net)]


@scenario
def half_and_complex_parameters(wrap: Wrapper) -> Tensors:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
            self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex128))
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.low.double() * self.turn * self.scale).abs()

    net = wrap(Mixed())
    for _ in range(2):
        net(torch.rand(6, 3)).sum().backward()
    return grads(net)


@scenario
def sparse_gradients(wrap: Wrapper) -> Tensors:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 3, sparse=True)
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.embed(x))

    net = wrap(Words())
    optimizer = torch.optim.SparseAdam(list(net.module.embed.parameters()), 0.1)
    for _ in range(2):
        net(torch.randint(20, (7,))).square().sum().backward()
    assert net.module.embed.weight.grad.is_sparse
    optimizer.step()
    optimizer.zero_grad()
    net(torch.randint(20, (7,))).square().sum().backward()
    return [net.module.embed.weight.grad.to_dense(), *net.state_dict().values()]


@scenario
def part_of_a_model(wrap: Wrapper) -> Tensors:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = wrap(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)))
            self.head = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(F.relu(self.features(x)))

    net = Whole()
    net(torch.rand(5, 4)).square().mean().backward()
    return [*net.state_dict().values(), *grads(net)]


class Whole(nn.Module):
    """A model with two wrapped parts and layers of its own: before, between, behind, and shared with a part."""

    def __init__(self, wrap: Wrapper) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.features = wrap(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)))
        self.norm = nn.BatchNorm1d(4)
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.encoder = wrap(self.encoder)
        self.drop = nn.Dropout(0.5)
        self.tied = self.features.module[0]
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.drop(self.norm(self.features(torch.tanh(self.stem(x)))))
        return self.head(self.tied(self.encoder(out)).relu())


@scenario
def parts_of_a_model_with_a_root(wrap: Wrapper) -> Tensors:
    net = Whole(wrap)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    result: Tensors = []
    for step, rows in enumerate((6, 9, 4, 8, 6)):
        if step == 3:  # the head is exchanged without a word to the wrapper, and the stem is frozen
            net.head = nn.Linear(4, 3)
            net.stem.requires_grad_(False)
            optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
        optimizer.zero_grad()
        net(torch.rand(rows, 4)).square().mean().backward()
        result += grads(net)
        optimizer.step()
    net.eval()
    result += [net(torch.rand(1, 4)), torch.rand(1)]
    return [*result, *net.state_dict().values()]


@scenario
def a_head_trained_past_its_part(wrap: Wrapper) -> Tensors:
    net = Whole(wrap)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    result: Tensors = []
    for rows in (6, 9, 8):
        x = torch.rand(rows, 4)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        (net.head(net.tied(x)).square().mean() + net.encoder.module(x).abs().mean()).backward()
        with torch.no_grad():
            features = net.features(x)
        net.norm(features).square().sum().backward()
        result += grads(net)
        optimizer.step()
    return [*result, *net.state_dict().values()]


@scenario
def a_copy_of_a_model_with_parts(wrap: Wrapper) -> Tensors:
    net = Whole(wrap)
    net.features.module[1].p = 0.0  # each of the oracle's copies would draw from a stream of its own
    net(torch.rand(8, 4)).sum().backward()
    twin = copy.deepcopy(net)
    alone = copy.deepcopy(net.encoder)
    for model in (net, twin, alone):
        model.zero_grad()
        model(torch.rand(8, 4)).square().sum().backward()
    return [*grads(net), *grads(twin), *grads(alone)]


class WithCriterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (F.cross_entropy(out * self.weight, y, reduction="none") * (y + 1)).mean()


@scenario
def wrapped_losses(wrap: Wrapper) -> Tensors:
    net, criterion, learned = wrap(mlp()), wrap(nn.CrossEntropyLoss()), wrap(WithCriterion())
    result: Tensors = []
    for rows in (6, 5, 1):
        out, y = net(torch.rand(rows, 4)), torch.arange(rows) % 3
        losses = criterion(out, y)
        (losses.mean() + learned(out, y).sum()).backward()
        result += [losses, *grads(net), *grads(learned)]
    return result


@scenario
def wrapped_to_evaluate(wrap: Wrapper) -> Tensors:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    for param in net.parameters():
        param.requires_grad_(False)
    net = wrap(net).eval()
    result: Tensors = [net(torch.rand(rows, 4)) for rows in (6, 1)]
    with torch.no_grad():
        result += [net(torch.rand(5, 4)), *net.buffers()]
    return result


@scenario
def random_numbers_in_forward(wrap: Wrapper) -> Tensors:
    net = wrap(Function(lambda self, x: F.dropout(self.layer(x), 0.5) + torch.randn(len(x), 1)))
    result: Tensors = []
    for rows in (6, 1, 5):  # an idle replica draws nothing
        result += [net(torch.rand(rows, 4)), torch.rand(1)]
    return result


@scenario
def numbers_of_other_generators_in_forward(wrap: Wrapper) -> Tensors:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        # As many as there are rows: what one rank draws another one doesn't.
        noise = [random.gauss(0, 1) + np.random.randn() + random.random() * np.random.rand() for _ in range(len(x))]
        return self.layer(x) * torch.tensor(noise)[:, None] + (random.random() if len(x) == 3 else 0)

    net = wrap(Function(forward))
    result: Tensors = []
    for rows in (6, 5, 1, 7):
        net(torch.rand(rows, 4)).square().sum().backward()
        shared = [random.gauss(0, 1), np.random.randn(), random.random(), np.random.rand()]
        result += [*grads(net), torch.tensor(shared)]
    with torch.no_grad():
        return [*result, net(torch.rand(5, 4)), torch.tensor(random.random())]


@scenario
def methods_of_the_module(wrap: Wrapper) -> Tensors:
    class WithMethod(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def embed(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embed(x).tanh()

    net = wrap(WithMethod())
    x = torch.rand(5, 4)
    (net(x).sum() + net.module.embed(x).square().sum()).backward()
    net.module.embed(x).sum().backward()
    return grads(net)


@scenario
def models_that_share_a_layer(wrap: Wrapper) -> Tensors:
    shared = nn.Linear(4, 4)
    one, other = wrap(nn.Sequential(shared, nn.Linear(4, 2))), wrap(nn.Sequential(nn.Tanh(), shared))
    result: Tensors = []
    for _ in range(2):
        x = torch.rand(5, 4)
        (one(x).square().sum() + other(x).sum()).backward()
        result += [*grads(one), *grads(other)]
    return result


@scenario
def unwrapped_and_wrapped_again(wrap: Wrapper) -> Tensors:
    net = wrap(mlp())
    for _ in range(3):
        net(torch.rand(5, 4)).square().sum().backward()
        net = wrap(net.module)
    return grads(net)


@scenario
def layers_used_as_the_rows_say(wrap: Wrapper) -> Tensors:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(8))

        def forward(self, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
            for layer, chosen in zip(self.layers, used.any(0)):
                x = layer(x).tanh() if chosen else x
            return x

    net = wrap(Routed())
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    for rows in (6, 5, 3, 4, 1, 7, 2, 6):
        optimizer.zero_grad(set_to_none=rows % 2 == 0)
        for _ in range(2):
            out = net(torch.rand(rows, 3), torch.rand(rows, 8) > 0.8)
            if out.requires_grad:
                out.square().sum().backward()
        optimizer.step()
    return [*net.state_dict().values(), *grads(net)]


@scenario
def hooks_on_parameters(wrap: Wrapper) -> Tensors:
    net = wrap(Function(lambda self, x: self.layer(x)))
    seen: Tensors = []
    weight, bias = net.module.layer.weight, net.module.layer.bias
    clamp = weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    bias.register_hook(lambda grad: seen.append(grad.clone()))
    bias.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad.clone()))
    for step in range(3):
        net(torch.rand(5, 4)).square().sum().backward()
        if step == 1:
            clamp.remove()
            weight.register_hook(lambda grad: grad * 2)
    net(torch.rand(1, 4)).sum().backward()
    return [*seen, *grads(net)]


@scenario
def what_forward_hangs_on_its_parameters(wrap: Wrapper) -> Tensors:
    """Hooks and notes on a replica's parameters, which are gone when the next forward begins."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        found = getattr(weight, "note", 1)
        weight.note = 3
        weight.register_hook(lambda grad: grad * 2)
        return self.layer(x) * found + self.other(x)

    net = wrap(Function(forward))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    result: Tensors = []
    for rows in (6, 5, 1, 6):
        optimizer.zero_grad()
        net(torch.rand(rows, 4)).square().sum().backward()
        optimizer.step()
        result += grads(net)
    return result


@scenario
def what_outputs_are_not_made_of(wrap: Wrapper) -> Tensors:
    """Inputs and parameters get no gradient then, not even zeros; by a checkpoint's own backward they do."""
    ignores = wrap(Function(lambda self, x: self.layer(x.detach())))
    doubles = wrap(Function(lambda self, x: x * 2))
    checkpoints = wrap(Function(lambda self, x: checkpoint(self.layer, x, use_reentrant=True)))
    two = wrap(Function(lambda self, x: (self.layer(x.detach()), x * 2)))
    two(torch.rand(5, 4, requires_grad=True))[1].sum().backward()
    x = torch.rand(5, 4, requires_grad=True)
    x.register_hook(lambda grad: grad * 2)
    ignores(doubles(x)).sum().backward()
    result = [x.grad, *grads(ignores), *grads(doubles)]
    (doubles(x).sum() + checkpoints(x).square().sum()).backward()
    return [*result, x.grad, *grads(doubles), *grads(checkpoints), *grads(two)]


@scenario
def what_perhaps_a_functions_own_backward_reaches(wrap: Wrapper) -> Tensors:
    """A checkpoint's begins anew from what some replicas' function has from outside; what none has gets no zeros."""

    def forward(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        start, factor = x.detach() + self.other.bias, y if float(y.detach().sum()) > 3 else 1
        return checkpoint(lambda v: self.layer(v) * factor, start, use_reentrant=True)

    result: Tensors = []
    for width in (4, 40_000):  # whose outputs are gathered, and stay on the ranks
        makes, judges = wrap(mlp(4, width)), wrap(Function(forward, width, 1))
        parameterless = wrap(Function(lambda self, x: checkpoint(torch.tanh, x, use_reentrant=True)))
        made, leaf = makes(torch.rand(5, 4)), torch.arange(5.0).requires_grad_()
        if torch.__version__ >= "2.2":  # older nodes have no numbers: zeros
            made.register_hook(lambda grad: grad * 2)
            judged = judges(made, leaf.view(5, 1))
            judged.square().sum().backward()
            result += [judged, leaf.grad, *grads(makes), *grads(judges)]
            parameterless(leaf).sum().backward()
            result += [leaf.grad, *grads(parameterless)]
    return result


@scenario
def named_arguments_of_fewer_rows(wrap: Wrapper) -> Tensors:
    """The last replicas are called without them."""

    def forward(self: Any, x: Any, weight: Any = None, *, by: float = 1) -> Any:
        return self.layer(x) * (1 if weight is None else weight.mean()) * by

    net = wrap(Function(forward))
    result: Tensors = []
    for rows, named in ((6, {"weight": torch.rand(1, 1)}), (1, {"weight": torch.rand(1, 1)}), (4, {"by": 3.0})):
        out = net(torch.rand(rows, 4), **named)
        out.square().sum().backward()
        result += [out, *grads(net)]
    return result


@scenario
def autocast(wrap: Wrapper) -> Tensors:
    net = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).float())
    result: Tensors = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(torch.rand(6, 4, dtype=torch.float32))
            loss = F.cross_entropy(out, torch.arange(6) % 3)
        loss.backward()
        result += [out, *grads(net)]
    return result


@scenario
def spectral_norm(wrap: Wrapper) -> Tensors:
    net = wrap(nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)), nn.LeakyReLU(), nn.Linear(5, 1)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    result: Tensors = []
    for rows in (6, 5):
        optimizer.zero_grad()
        (net(torch.rand(rows, 4)).mean() - net(torch.rand(rows, 4)).mean()).backward()
        optimizer.step()
        result += [*grads(net), *net.state_dict().values()]
    return result


@scenario
def memory_formats(wrap: Wrapper) -> Tensors:
    net = wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)).to(memory_format=torch.channels_last))
    x = torch.rand(5, 3, 6, 6).to(memory_format=torch.channels_last)
    out = net(x)
    out.square_()
    out.mean().backward()
    return [out, *grads(net)]


def run_all(wrap: Wrapper) -> dict[str, Tensors]:
    """Every scenario from the same seed, in double precision."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    results = {}
    try:
        for name, function in SCENARIOS.items():
            rng.seed_everything(len(name))
            results[name] = [_plain(value) for value in function(wrap)]
    finally:
        torch.set_default_dtype(torch.float32)
    return results


def _plain(value: Any) -> Any:
    return value.detach().clone().resolve_conj() if isinstance(value, torch.Tensor) else value
