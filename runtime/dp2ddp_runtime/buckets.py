"""Gradients on their way over the ranks: in buckets, each of which travels in one all-reduce."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from . import collectives, world

_FIRST_BUCKET = 1 << 20  # bytes: small, so that the first all-reduce starts early in backward
_BUCKET = 25 << 20  # bytes, as DistributedDataParallel's default
_HALF = (torch.float16, torch.bfloat16)


def plan(params: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters in buckets' sizes, per dtype and device.

    Args:
        params: in the order in which backward is likely to reach them.

    Returns:
        The buckets' parameters, in the order in which the buckets are likely to be complete.
    """
    full: list[list[torch.nn.Parameter]] = []
    filling: dict[Any, list[torch.nn.Parameter]] = {}
    sizes: dict[Any, int] = {}
    for param in params:
        key = (param.dtype, param.device)
        filling.setdefault(key, []).append(param)
        sizes[key] = sizes.get(key, 0) + param.numel() * param.element_size()
        if sizes[key] >= (_BUCKET if full else _FIRST_BUCKET):
            full.append(filling.pop(key))
            del sizes[key]
    return [*full, *filling.values()]


class Bucket:
    """Gradients that travel together, in a flat buffer with a view for each; behind them a flag for each."""

    def __init__(self, params: Sequence[torch.nn.Parameter]) -> None:
        self.params = params
        self._grads: list[torch.Tensor | None] = []  # this rank's, as they are sent; None where it has none
        self._versions: list[int] = []
        self._work: Any = None
        ends = [0, *itertools.accumulate(param.numel() * (1 + param.is_complex()) for param in params)]
        self._flat = torch.zeros(ends[-1] + len(params), dtype=_carried_as(params[0]), device=params[0].device)
        self._views = [_view(self._flat[start:end], param) for start, end, param in zip(ends, ends[1:], params)]
        self._flags = self._flat[ends[-1] :]

    def complete(self) -> bool:
        """Whether every parameter has a gradient."""
        return all(param.grad is not None for param in self.params)

    def launch(self, group: Any) -> None:
        """Start the all-reduce of what there is, with zeros where this rank has no gradient."""
        self._grads = [param.grad for param in self.params]
        self._versions = [-1 if grad is None else grad._version for grad in self._grads]
        if any(grad is not None and grad.layout != torch.strided for grad in self._grads):
            raise RuntimeError(
                "a sparse gradient for a parameter that belongs to no nn.Embedding or nn.EmbeddingBag with sparse=True "
                "can't be averaged over ranks"
            )
        self._flags.fill_(1)
        if -1 in self._versions:
            torch._foreach_zero_(self._views)
            self._flags.copy_(torch.tensor(self._versions) >= 0)
        self._copy(inwards=True)
        self._flat.div_(world.world_size())
        self._work = collectives.start_sum(self._flat, group)

    def _copy(self, inwards: bool) -> None:
        pairs = [(view, grad) for view, grad in zip(self._views, self._grads) if grad is not None]
        if pairs:
            views, grads = zip(*pairs)
            torch._foreach_copy_(*((views, grads) if inwards else (grads, views)))

    def check(self) -> None:
        """Raise if gradients have changed since the launch."""
        for param, grad, version in zip(self.params, self._grads, self._versions):
            if param.grad is not grad or (grad is not None and grad._version != version):
                raise RuntimeError(
                    "a parameter got its gradient twice in one backward, the second time inside "
                    "torch.utils.checkpoint: pass use_reentrant=False to it"
                )

    def wait(self) -> None:
        """Wait for the all-reduce, if one is under way."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def finish(self) -> None:
        """Put the averages where this rank's gradients were, and a new gradient where only other ranks have one."""
        self.wait()
        if -1 in self._versions:  # else the flags aren't looked at, which would wait for the device
            for index, used in enumerate((self._flags > 0).tolist()):
                if used and self._grads[index] is None:
                    self._grads[index] = self.params[index].grad = torch.empty_like(self.params[index])
        self._copy(inwards=False)
        self._grads = []


def _view(part: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """A part of a buffer, in the shape and memory format that the parameter's gradient is likely to have."""
    part = torch.view_as_complex(part.view(-1, 2)) if param.is_complex() else part
    return part.as_strided(param.shape, torch.empty_like(param, device="meta").stride())


def _carried_as(param: torch.Tensor) -> torch.dtype:
    if param.is_complex():
        return param.detach().real.dtype
    # gloo doesn't add bfloat16 on all versions; on the CPU the wider type costs little and rounds once.
    return torch.float32 if param.dtype in _HALF and param.device.type == "cpu" else param.dtype
