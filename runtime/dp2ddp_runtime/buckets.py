"""Gradients on their way over the ranks: in buckets, which travel as soon as they are complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Callable

import torch

from . import collectives, hooks, world

_FIRST_BUCKET = 1 << 20  # bytes: small, so that the first all-reduce starts early in backward
_BUCKET = 25 << 20  # bytes, as DistributedDataParallel's default
_ALONE = {"cpu": 1 << 20}  # bytes: a parameter's that travels by itself; on other devices those of a bucket
_HALF = (torch.float16, torch.bfloat16)


class Slot:
    """A parameter's place in a bucket, and what became of its gradient in the current backward."""

    def __init__(self, param: torch.nn.Parameter) -> None:
        self.param = param
        self.filled = False  # `param.grad` holds this backward's gradient
        self.local = False  # `param.grad` holds gradients that were never averaged (`no_sync`)
        self.aside: torch.Tensor | None = None  # the gradient from before this backward

    def set_aside(self) -> None:
        """Make room, so that what backward leaves in `param.grad` is this backward's gradient alone."""
        if self.param.grad is not None and not self.filled and not self.local:
            self.aside, self.param.grad = self.param.grad, None

    def accept(self, average: torch.Tensor | None) -> None:
        """Put the average into `param.grad`, on top of what was there before this backward. None: no rank has one."""
        before = self.aside if self.filled or self.aside is not None else self.param.grad
        self.add(before, average)

    def add(self, before: torch.Tensor | None, new: torch.Tensor | None) -> None:
        """Leave `before + new` in `param.grad`, as `AccumulateGrad` would, with the script's hooks."""
        if new is None:
            self.param.grad = before
        else:
            new = hooks.on_gradient(self.param, new)
            inplace = before is not None and before.layout == new.layout == torch.strided
            total = new if before is None else before.add_(new.detach()) if inplace else before + new
            if self.param.grad is not total:
                self.param.grad = total
            hooks.on_accumulated(self.param)
        self.reset()

    def reset(self) -> None:
        self.aside, self.filled, self.local = None, False, False

    def abandon(self) -> None:
        """Forget a backward that failed. What it left in `param.grad` stays, or was cleared by the script since."""
        self.aside, self.filled = None, False


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _carried_as(param: torch.Tensor) -> torch.dtype:
    if param.is_complex():
        return param.detach().real.dtype
    # gloo doesn't add bfloat16 on all versions; on the CPU the wider type costs little and rounds once.
    return torch.float32 if param.dtype in _HALF and param.device.type == "cpu" else param.dtype


class Bucket(ABC):
    """Gradients that travel together, in one all-reduce."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.work: Any = None
        self.reset()

    def reset(self) -> None:
        self.work, self.pending = None, len(self.slots)

    def take(self, slot: Slot) -> None:
        """This rank has a gradient for `slot`; or has more of it."""
        self.pending -= not slot.filled
        slot.filled = True

    @abstractmethod
    def launch(self, group: Any) -> None:
        """Start the all-reduce, with zeros where this rank has no gradient."""

    @abstractmethod
    def average(self, slot: Slot) -> torch.Tensor:
        """The averaged gradient, in a tensor of its own."""

    def finish(self, doubles: set[Slot], used: Callable[[Slot], bool]) -> None:
        self.work.wait()
        for slot in self.slots:
            if slot in doubles:
                slot.reset()
            else:
                slot.accept(self.average(slot) if slot.filled or used(slot) else None)
        self.reset()


class Together(Bucket):
    """Small gradients, in a flat buffer with room for each; at its end, in the last bucket, a flag per parameter."""

    def __init__(self, slots: Sequence[Slot], like: torch.Tensor, flags: int) -> None:
        super().__init__(slots)
        shapes = [_real(slot.param.detach()).shape for slot in slots]
        sizes = [shape.numel() for shape in shapes]
        self._flat = torch.zeros(sum(sizes) + flags, dtype=_carried_as(like), device=like.device)
        *views, self._flags = torch.split(self._flat, [*sizes, flags])
        self._views = {slot: view.view(shape) for slot, view, shape in zip(slots, views, shapes)}

    def tell(self, used: Sequence[bool]) -> None:
        """Which parameters this rank has a gradient for."""
        if all(used):
            self._flags.fill_(1)
        else:
            self._flags.copy_(torch.tensor(used))

    def told(self) -> list[bool]:
        """Which ones any rank has. Waits for the device."""
        self.work.wait()
        used: list[bool] = (self._flags > 0).tolist()
        return used

    def launch(self, group: Any) -> None:
        if self._views:
            parts = [self._sent(slot).reshape(-1) for slot in self.slots]
            torch.cat(parts, out=self._flat.narrow(0, 0, len(self._flat) - len(self._flags)))
        self._flat.div_(world.world_size())
        self.work = collectives.start_sum(self._flat, group)

    def _sent(self, slot: Slot) -> torch.Tensor:
        if not slot.filled:
            return torch.zeros_like(self._views[slot])
        assert slot.param.grad is not None
        return _real(slot.param.grad.detach())

    def average(self, slot: Slot) -> torch.Tensor:
        grad = slot.param.grad if slot.filled else torch.empty_like(slot.param)
        assert grad is not None
        _real(grad.detach()).copy_(self._views[slot])
        return grad


class Alone(Bucket):
    """A large gradient by itself: copied once, where a bucket's is copied in and out."""

    _sent: torch.Tensor

    def __init__(self, slot: Slot) -> None:
        super().__init__([slot])

    def launch(self, group: Any) -> None:
        param = self.slots[0].param
        if self.slots[0].filled:
            assert param.grad is not None
            # Not in place: autograd may hand the same memory to what backward has yet to reach.
            self._sent = torch.div(param.grad.detach(), world.world_size()).contiguous()
        else:
            self._sent = torch.zeros_like(param, memory_format=torch.contiguous_format)
        self.work = collectives.start_sum(_real(self._sent), group)

    def average(self, slot: Slot) -> torch.Tensor:
        average, self._sent = self._sent, torch.empty(0)
        grad = slot.param.grad if slot.filled else torch.empty_like(slot.param)
        assert grad is not None
        if grad.is_contiguous() and not grad.requires_grad:
            return average
        grad.detach().copy_(average)
        return grad

    def reset(self) -> None:
        super().reset()
        self._sent = torch.empty(0)


def _travels_alone(param: torch.Tensor) -> bool:
    size = param.numel() * param.element_size()
    return size >= _ALONE.get(param.device.type, _BUCKET) and param.dtype == _carried_as(_real(param.detach()))


def plan(params: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters in the order in which backward is likely to reach them, per dtype and device, in buckets' sizes.

    Buckets come in the order in which they are likely to be complete.
    """
    full: list[list[torch.nn.Parameter]] = []
    filling: dict[Any, list[torch.nn.Parameter]] = {}
    sizes: dict[Any, int] = {}
    for param in reversed(params):
        if _travels_alone(param):
            full.append([param])
            continue
        key = (param.dtype, param.device)
        filling.setdefault(key, []).append(param)
        sizes[key] = sizes.get(key, 0) + param.numel() * param.element_size()
        if sizes[key] >= (_BUCKET if full else _FIRST_BUCKET):
            full.append(filling.pop(key))
            del sizes[key]
    return [*full, *filling.values()]


def make_buckets(params: Sequence[torch.nn.Parameter]) -> tuple[list[Bucket], Together]:
    """The buckets, and the last one of them, which also carries the flags of all parameters."""
    groups = [[Slot(param) for param in group] for group in plan(params)]
    if _travels_alone(groups[-1][0].param):
        groups.append([])
    buckets: list[Bucket] = [
        Alone(group[0]) if _travels_alone(group[0].param) else Together(group, group[0].param, 0)
        for group in groups[:-1]
    ]
    like = groups[-1][0].param if groups[-1] else params[0]
    last = Together(groups[-1], like, len(params))
    return [*buckets, last], last
