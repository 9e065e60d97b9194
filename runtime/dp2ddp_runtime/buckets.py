"""Gradients on their way over the ranks: in buckets, each of which travels in one all-reduce, and sparse ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import world
from .collectives import all_gather, bytes_of, gather_rows

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
        self._sent: list[tuple[torch.Tensor, torch.Tensor]] = []  # views, and this rank's gradients
        self.work: Any = None
        sizes = [param.numel() * (1 + param.is_complex()) for param in params]
        self._flat = torch.zeros(sum(sizes) + len(params), dtype=_carried_as(params[0]), device=params[0].device)
        *parts, self._flags = torch.split(self._flat, [*sizes, len(params)])
        self._views = [_view(part, param) for part, param in zip(parts, params)]

    def complete(self) -> bool:
        """Whether every parameter has a gradient."""
        return all(param.grad is not None for param in self.params)

    def launch(self, group: Any) -> None:
        """Start the all-reduce of what there is, with zeros where this rank has no gradient."""
        if self.work is not None:
            self.work.wait()  # a backward began it and failed
        grads = [param.grad for param in self.params]
        self._sent = [(view, grad) for view, grad in zip(self._views, grads) if grad is not None]
        self._versions = [grad._version for _, grad in self._sent]
        if any(grad.layout != torch.strided for _, grad in self._sent):
            raise RuntimeError(
                "a sparse gradient for a parameter that belongs to no nn.Embedding or nn.EmbeddingBag with sparse=True "
                "can't be averaged over ranks"
            )
        if len(self._sent) < len(grads):
            self._flat.zero_()
            self._flags.copy_(torch.tensor([grad is not None for grad in grads]))
        else:
            self._flags.fill_(1)
        self._copy(inwards=True)
        self._flat.div_(world.world_size())
        self.work = group.allreduce([self._flat])

    def check(self) -> None:
        """Raise if gradients of a bucket that was complete have changed since the launch."""
        for param, (_, grad), version in zip(self.params, self._sent, self._versions):
            if param.grad is not grad or grad._version != version:
                raise RuntimeError(
                    "a parameter got its gradient twice in one backward, the second time inside "
                    "torch.utils.checkpoint: pass use_reentrant=False to it"
                )

    def finish(self) -> None:
        """Put the averages where this rank's gradients were, and a new gradient where only other ranks have one."""
        self.work.wait()
        self.work = None
        if len(self._sent) < len(self.params):  # else the flags aren't looked at, which would wait for the device
            for param, view, flag in zip(self.params, self._views, self._flags.tolist()):
                if flag > 0 and param.grad is None:
                    param.grad = torch.empty_like(param)
                    self._sent.append((view, param.grad))
        self._copy(inwards=False)
        self._sent = []

    def _copy(self, inwards: bool) -> None:
        if self._sent:
            views, grads = zip(*self._sent)
            torch._foreach_copy_(*((views, grads) if inwards else (grads, views)))


def _view(part: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """A part of a buffer, in the shape and memory format that the parameter's gradient is likely to have."""
    part = torch.view_as_complex(part.view(-1, 2)) if param.is_complex() else part
    return part.as_strided(param.shape, torch.empty_like(param, device="meta").stride())


def _carried_as(param: torch.Tensor) -> torch.dtype:
    if param.is_complex():
        return param.detach().real.dtype
    # gloo doesn't add bfloat16 on all versions; on the CPU the wider type costs little and rounds once.
    return torch.float32 if param.dtype in _HALF and param.device.type == "cpu" else param.dtype


def average_sparse(grad: torch.Tensor | None, param: torch.Tensor) -> torch.Tensor | None:
    """The mean of the ranks' sparse gradients, coalesced, and never dense; None if no rank has one. A collective.

    Args:
        grad: this rank's sparse COO gradient, whose values are rows of the parameter; None if it has none.
        param: the parameter, for its shape, dtype and device.

    Raises:
        RuntimeError: the gradient is dense (the parameter is also used elsewhere than in its embedding).
    """
    if grad is not None and grad.layout != torch.sparse_coo:
        raise RuntimeError(
            f"the weight of a sparse embedding (shape {tuple(param.shape)}) has a dense gradient, because it is also "
            "used elsewhere: build the embedding with sparse=False"
        )
    own = torch.tensor([-1 if grad is None else grad._nnz()])
    counts = all_gather(bytes_of(own)).view(torch.int64).flatten().tolist()
    if max(counts) < 0:
        return None
    if grad is None:
        grad = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), param[:0], param.shape)
    sizes = [max(0, count) for count in counts]
    rows = gather_rows(grad._indices(), sizes, 1)
    values = gather_rows(grad._values() / world.world_size(), sizes, 0)
    return torch.sparse_coo_tensor(rows, values, param.shape, check_invariants=False).coalesce()
