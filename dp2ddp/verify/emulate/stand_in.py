"""What a script sees in place of `nn.DataParallel`: replicas in turn, or one GPU that has the whole batch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from dp2ddp_runtime import nesting, streams
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dp2ddp.verify.emulate import cuda
from dp2ddp.verify.emulate.oracle import EmulatedDataParallel
from dp2ddp.verify.run.step_hooks import Recorder

# Every place from which scripts import the class. `torch.nn.parallel.data_parallel` is a module that a function of
# the same name hides, hence no attribute access.
_HOMES = ("torch.nn", "torch.nn.parallel", "torch.nn.parallel.data_parallel")
_TORCH_S_OWN = {*vars(nn.Module()), "_former_parameters", "_is_replica"}


def emulate(replicas: int, recorder: Recorder, *, one_gpu: bool) -> None:
    """Put a class with `replicas` replicas where `DataParallel` is, and the functional form of it where
    `data_parallel` is.

    Args:
        one_gpu: the model itself runs, on the whole batch. BatchNorm normalises the rows of each replica by themselves.

    Call it before the script is imported. A model that the script saves whole is pickled as torch's own class. All
    models draw from one stream per replica, as those of a converted script draw from one per rank.
    """
    streams.own_start()
    body: dict[str, Any] = {
        "replicas": replicas,
        "recorder": recorder,
        "one_gpu": one_gpu,
        "streams": [streams.Stream(rank=rank) for rank in range(replicas)],
        "__module__": _HOMES[-1],
        "__qualname__": "DataParallel",
    }
    stand_in: Any = type("DataParallel", (_StandIn,), body)

    def data_parallel(
        module: nn.Module,
        inputs: Any,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        module_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        return stand_in(module, device_ids, output_device, dim)(*arguments, **(module_kwargs or {}))

    for name in _HOMES:
        vars(importlib.import_module(name))["DataParallel"] = stand_in
    for name in _HOMES[1:]:
        vars(importlib.import_module(name))["data_parallel"] = data_parallel


class _StandIn(EmulatedDataParallel):
    """Replicas, of which is noted what they lose; or one GPU."""

    recorder: ClassVar[Recorder]
    one_gpu: ClassVar[bool]
    inside: ClassVar[bool] = False  # of a wrapped model's forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self._whole(args, kwargs) if self.one_gpu else self._in_replicas(args, kwargs)
        for each in nesting.tensors(output):
            if each.requires_grad:
                each.register_hook(self._look_for_draws)
        return output

    def _in_replicas(self, args: Any, kwargs: Any) -> Any:
        if self.n > 1:
            if self.inside:
                raise RuntimeError(
                    "a replica on another GPU than the first can't run an nn.DataParallel that is within it"
                )
            self.recorder.split()
            if "replicate" in self.__dict__ or type(self).replicate is not nn.DataParallel.replicate:
                self.recorder.note("meets")
            given = [*args, *kwargs.values()]
            rows = next((each.size(self.dim) for each in given if isinstance(each, torch.Tensor) and each.dim()), 0)
            lists = (each for each in given if isinstance(each, (list, tuple)) and len(each) == rows > 1)
            if any(not isinstance(each[0], torch.Tensor) for each in lists):
                self.recorder.note(
                    "lost", "each replica is given all of a list that has an entry for each row of the batch"
                )
        return super().forward(*args, **kwargs)

    def run(self, number: int, replica: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.inside:
            return replica(*args, **kwargs)
        before = _attributes(replica)
        with mock.patch.object(_StandIn, "inside", True), cuda.on_device(number):
            output = self.recorder.forward(self.module, number, replica, replica, args, kwargs)
        after = _attributes(replica)
        for name, (value, place) in sorted(after.items(), key=lambda each: each[0]):
            known = before.get(name, (self, 0))
            if known[0] is not value or known[1] != place:
                self.recorder.note("lost", f"the forward assigns {name}, which stays in the replica")
        if nesting.tensors(output, str):
            self.recorder.note("lost", "texts that the forward returns can't be put together")
        return output

    def _look_for_draws(self, grad: torch.Tensor) -> None:
        """A backward comes to the model: it may draw random numbers, in whatever order replicas come."""
        before = streams.Position()
        end: Any = torch.autograd.Variable._execution_engine
        end.queue_callback(lambda: self.recorder.note("draws") if before.moved else None)

    def _whole(self, args: Any, kwargs: Any) -> Any:
        """What one GPU does."""
        if self.inside:
            return self.module(*args, **kwargs)
        self.recorder.split()
        before = streams.Position()
        with mock.patch.object(_StandIn, "inside", True), _batch_norm_by_rows(self.n):
            output = self.recorder.forward(self.module, 0, self.module, self.module, args, kwargs)
        if before.moved:
            self.recorder.note("drew")
        trained = [each for each in self.module.parameters() if each.requires_grad]
        return nesting.nested(lambda each: _Using.apply(each, *trained) if each.requires_grad else each, output)


class _Using(torch.autograd.Function):
    """An output, of parameters that it may not use: these have zeros for gradients, as those of replicas have."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *trained: torch.Tensor) -> torch.Tensor:
        ctx.trained = trained
        return output.clone()  # the script may change it in place

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (grad, *map(torch.zeros_like, ctx.trained))


def _attributes(replica: nn.Module) -> dict[str, tuple[Any, int]]:
    """What the script's own modules hold, buffers too, and all parameters; of tensors also where they lie."""
    found = {}
    for part in replica.modules():
        held: dict[str, Any] = {**getattr(part, "_former_parameters", {})}
        if not type(part).__module__.startswith("torch."):
            held.update(part._buffers, **{key: value for key, value in vars(part).items() if key not in _TORCH_S_OWN})
        for key, value in held.items():
            lies = isinstance(value, torch.Tensor) and value.layout == torch.strided
            found[f"{type(part).__name__}.{key}"] = value, value.data_ptr() if lies else 0
    return found


@contextmanager
def _batch_norm_by_rows(parts: int) -> Iterator[None]:
    """BatchNorm normalises each replica's rows by themselves, and keeps the first one's statistics."""
    original: Any = _BatchNorm.forward

    def forward(self: Any, rows: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return original(self, rows)  # type: ignore[no-any-return]
        first, *others = rows.chunk(parts)
        rest = [F.batch_norm(each, None, None, self.weight, self.bias, True, 0.0, self.eps) for each in others]
        return torch.cat([original(self, first), *rest])

    with mock.patch.object(_BatchNorm, "forward", forward):
        yield
