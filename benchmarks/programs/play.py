"""Runs a program: the same lines on each rank and with `nn.DataParallel`, and what there is to see of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from dp2ddp_runtime import streams
from dp2ddp_runtime.rows import materialize
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from . import models
from .blocks import WIDTH
from .parts import Part
from .spec import data_of, models_of, optimizer_of

Shard = Callable[[Any], Any]
#: A label, and what was seen: None, text, or a tensor's type and numbers.
Note = tuple[str, Any]


class Batch(NamedTuple):
    """Rows, what they should become, and their classes."""

    x: torch.Tensor
    target: torch.Tensor
    labels: torch.Tensor


class Run:
    """A program while it runs.

    Attributes:
        spec: the program.
        wrap, shard: what wraps models, and what loaders go through.
        nets: the models.
        optimizers: of each model; behind these one for weights with sparse gradients.
        extras: trained tensors outside of models, by name.
        keep: what shapes keep from step to step.
        notes: all that was seen so far.
        step: which one it is, from 0.
    """

    def __init__(self, spec: Part, wrap: models.Wrap, shard: Shard) -> None:
        self.spec, self.wrap, self.shard = spec, wrap, shard
        self.models, self.data = models_of(spec), data_of(spec)
        self.step = 0
        self.keep: dict[str, Any] = {}
        self.notes: list[Note] = []
        self._seen: list[tuple[str, torch.Tensor]] = []
        self.nets = [self.build(which) for which in range(len(self.models))]
        self.extras = {
            "centers": nn.Parameter(torch.randn(WIDTH, WIDTH)),
            "latent": nn.Parameter(torch.randn(1, WIDTH) * 0.1),
            "temperature": nn.Parameter(torch.tensor(0.7)),
        }
        self.optimizers: list[torch.optim.Optimizer] = []
        self.make_optimizers()
        self._batches = self._load() if self.data.name == "loader" else self._make()

    def build(self, which: int) -> nn.Module:
        """A model as the spec's, anew."""
        return models.build(self.models[which], self.wrap)

    def core(self) -> Any:
        """The first model's module with blocks and head."""
        net: Any = self.nets[0]
        return net.module if hasattr(net, "module") else net.features.module

    # --- data ---------------------------------------------------------------------------------------------------

    def _make(self) -> Iterator[Batch]:
        while True:
            for rows in self.data["rows"]:
                x, target = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
                yield Batch(x, target, torch.randint(WIDTH, (rows,)))

    def _load(self) -> Iterator[Batch]:
        total, size = self.data["rows"]
        data = TensorDataset(torch.randn(total, WIDTH), torch.randn(total, WIDTH), torch.randint(WIDTH, (total,)))
        shuffle, drop_last = self.data["shuffle"], self.data["drop_last"]
        loader = self.shard(DataLoader(data, size, shuffle=shuffle, drop_last=drop_last))
        while True:
            for x, target, labels in loader:
                yield Batch(x, target, labels)

    def batch(self) -> Batch:
        """The next one."""
        return next(self._batches)

    # --- models -------------------------------------------------------------------------------------------------

    def make_optimizers(self) -> None:
        """Anew, with nothing remembered."""
        told = optimizer_of(self.spec)
        kind: Any = getattr(torch.optim, told.name)
        settings = told.make()
        sparse = [
            each.weight
            for net in self.nets
            for each in net.modules()
            if isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse
        ]
        alone = {id(each) for each in sparse}
        groups = [[each for each in net.parameters() if id(each) not in alone] for net in self.nets]
        has_extras = any("extras" in part.tags for part in self.spec.parts)
        main = kind([*groups[0], *(self.extras.values() if has_extras else ())], **settings)
        self.optimizers = [main, *(torch.optim.SGD(group, lr=0.05) for group in groups[1:])]
        if sparse:
            last: Any = torch.optim.SGD if told.name == "SGD" else torch.optim.SparseAdam
            self.optimizers.append(last(sparse, lr=0.05))

    def trained(self, which: int = 0) -> list[nn.Parameter]:
        """A model's parameters that have gradients."""
        return [param for param in self.nets[which].parameters() if param.requires_grad]

    def with_gradients(self) -> Iterator[Any]:
        """The first model's parameters whose .grad is there."""
        return (param for param in self.nets[0].parameters() if param.grad is not None)

    def forward(self, x: torch.Tensor, which: int = 0, weights: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """A model's main output; with other `weights` than its own."""
        args, named = models.arguments(self.models[which]["call"], x)
        cast = torch.autocast("cpu", torch.bfloat16) if self.spec["autocast"] else contextlib.nullcontext()
        with cast, models.holding(self.nets[which], weights or {}):
            answer = self.nets[which](*args, **named, **kwargs)
        out = models.main_of(answer)
        if kwargs:
            return out
        self.look(f"output {which}", out)
        return out

    def answer(self, batch: Batch, x: torch.Tensor | None = None, which: int = 0) -> tuple[Any, Any, Any]:
        """A model's output, with as many targets and labels as it has rows."""
        out = self.forward(batch.x if x is None else x, which)
        return out, batch.target[: len(out)], batch.labels[: len(out)]

    def loss(self, batch: Batch | None = None) -> Any:
        """The sum of the program's losses."""
        batch = self.batch() if batch is None else batch
        losses = [part.make(self, batch) for part in self.spec.of("loss")]
        if not losses:
            out, target, _ = self.answer(batch)
            losses = [F.mse_loss(out, target.to(out.dtype))]
        return sum(losses[1:], losses[0])

    # --- what is seen -------------------------------------------------------------------------------------------

    def note(self, label: str, value: Any) -> None:
        """What a script would print."""
        self.notes.append((f"{self.step}: {label}", plain(value)))

    def look(self, label: str, tensor: torch.Tensor) -> None:
        """The same, when the spec says that the script looks at outputs."""
        if self.spec["look"] == "before":
            self.note(label, tensor)
        elif self.spec["look"] == "after":
            self._seen.append((label, tensor))

    def look_later(self) -> None:
        """What was to be looked at after a backward."""
        for label, tensor in self._seen:
            self.note(label, tensor)
        self._seen.clear()

    def note_state(self) -> None:
        """All that training has changed."""
        for which, net in enumerate(self.nets):
            for name, param in net.named_parameters():
                self.note(f"grad {which} {name}", param.grad)
                self.note(f"param {which} {name}", param)
            for name, buffer in net.named_buffers():
                self.note(f"buffer {which} {name}", buffer)
        for name, param in self.extras.items():
            self.note(f"grad {name}", param.grad)
            self.note(f"param {name}", param)
        for which, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for place, param in enumerate(group["params"]):
                    for name, value in optimizer.state.get(param, {}).items():
                        if isinstance(value, (torch.Tensor, int, float)):
                            self.note(f"optimizer {which} {place} {name}", value)

    # --- a step -------------------------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """As the spec says."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self.spec["set_to_none"])

    def _gradients(self) -> Any:
        self.zero_grad()
        loss: Any = None
        for part in self.spec.of("backward") or [Part("plainly")]:
            loss = part.make(self)
            self.note("loss", loss)
        self.look_later()
        for part in self.spec.of("gradients"):
            part.make(self)
        return loss

    def update(self) -> None:
        """One step of training."""
        first, *others = self.optimizers
        if optimizer_of(self.spec).name == "LBFGS" or self.spec["closure"]:
            first.step(self._gradients)
        else:
            self._gradients()
            first.step()
        for optimizer in others:
            optimizer.step()


def plain(value: Any) -> Any:
    """What can be sent and compared: None, text, or a tensor's type and numbers."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, torch.Tensor):
        return repr(value) if not isinstance(value, float) else ("float", np.array(value))
    tensor = materialize(value).detach().cpu()
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        kind, tensor = f"sparse {kind}", tensor.to_dense()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return kind, tensor.resolve_conj().resolve_neg().numpy().copy()


def play(spec: Part, wrap: models.Wrap, shard: Shard) -> list[Note]:
    """Run a program, and return all that was seen."""
    torch.set_default_dtype(torch.float32 if spec["autocast"] else torch.float64)
    streams.seed_everything(spec["seed"])
    run = Run(spec, wrap, shard)
    around = [part.make(run) for part in spec.of("around")]
    for run.step in range(spec["steps"]):
        for each in around:
            next(each, None)
        run.update()
        run.note_state()
    for each in around:
        next(each, None)
    run.note("a random number", torch.rand(()))
    run.note_state()
    return run.notes
