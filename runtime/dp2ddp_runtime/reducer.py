"""Averaging the parameters' gradients over the ranks during backward.

torch's own Reducer decides at forward which parameters backward will touch. It raises, or silently skips averaging, for
what `nn.DataParallel` takes without a word: parameters that get no gradient, several forwards before several
backwards, parts that are frozen and thawed. This one decides nothing ahead: each backward launches every bucket once,
in the same order on all ranks, whatever it touched; a flag per parameter tells whether any rank did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import hooks, sparse, world

_FIRST_BUCKET = 1 << 20  # bytes: small, so that the first all-reduce starts early in backward
_BUCKET = 25 << 20  # bytes, as DistributedDataParallel's default
_HALF = (torch.float16, torch.bfloat16)


class _Slot:
    """A parameter's place in a bucket, and what became of its gradient in the current backward."""

    def __init__(self, param: torch.nn.Parameter) -> None:
        self.param = param
        self.view = torch.empty(0)  # its part of the bucket, set by the bucket
        self.filled = False  # the bucket holds this backward's gradient
        self.local = False  # `param.grad` holds gradients that were never averaged (`no_sync`)
        self.aside: torch.Tensor | None = None  # the gradient from before this backward

    def set_aside(self) -> None:
        """Make room, so that what backward leaves in `param.grad` is this backward's gradient alone."""
        if self.param.grad is not None and not self.filled and not self.local:
            self.aside, self.param.grad = self.param.grad, None

    def fill(self) -> None:
        assert self.param.grad is not None
        self.view.copy_(_real(self.param.grad.detach()))
        self.filled = True

    def accept(self, used_elsewhere: bool) -> None:
        """Put the average into `param.grad`, on top of what was there before this backward."""
        new = self.param.grad if self.filled else torch.empty_like(self.param) if used_elsewhere else None
        before = self.aside if self.filled or self.aside is not None else self.param.grad
        if new is not None:
            _real(new.detach()).copy_(self.view)
        self.add(before, new)

    def add(self, before: torch.Tensor | None, new: torch.Tensor | None) -> None:
        """Leave `before + new` in `param.grad`, as `AccumulateGrad` would, with the script's hooks."""
        if new is None:
            self.param.grad = before
        else:
            new = hooks.on_gradient(self.param, new)
            inplace = before is not None and before.layout == new.layout == torch.strided
            self.param.grad = new if before is None else before.add_(new.detach()) if inplace else before + new
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


class _Bucket:
    """Gradients that travel together: a flat buffer with room for each, and a flag per parameter at its end."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self.slots = slots
        first = slots[0].param
        views = [_real(slot.param.detach()) for slot in slots]
        size = sum(view.numel() for view in views)
        self.flat = torch.zeros(size + len(slots), dtype=_carried_as(first), device=first.device)
        self.flags = self.flat[size:]
        self.work: Any = None
        self.pending = len(slots)
        offset = 0
        for slot, view in zip(slots, views):
            slot.view = self.flat[offset : offset + view.numel()].view(view.shape)
            offset += view.numel()

    def launch(self, group: Any) -> None:
        self.flags.fill_(1)
        if self.pending:
            for index, slot in enumerate(self.slots):
                if not slot.filled:
                    slot.view.zero_()
                    self.flags[index].zero_()
        self.flat.div_(world.world_size())
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self, doubles: set[_Slot]) -> None:
        self.work.wait()
        # Reading the flags waits for a CUDA device, so only do it where this rank doesn't know the answer.
        used = (self.flags > 0).tolist() if self.pending else [True] * len(self.slots)
        for slot, anywhere in zip(self.slots, used):
            if slot in doubles:
                slot.reset()
            else:
                slot.accept(anywhere)
        self.reset()

    def reset(self) -> None:
        self.work, self.pending = None, len(self.slots)


def _plan_buckets(params: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters in the order in which backward is likely to reach them, per dtype and device, in buckets' sizes."""
    full: list[list[torch.nn.Parameter]] = []
    open_buckets: dict[Any, list[torch.nn.Parameter]] = {}
    sizes: dict[Any, int] = {}
    for param in reversed(params):
        key = (param.dtype, param.device)
        if key not in open_buckets:
            open_buckets[key], sizes[key] = [], 0
            full.append(open_buckets[key])
        open_buckets[key].append(param)
        sizes[key] += param.numel() * param.element_size()
        if sizes[key] >= (_FIRST_BUCKET if open_buckets[key] is full[0] else _BUCKET):
            del open_buckets[key]
    return full


class Reducer:
    """Averages gradients over the ranks. Making one is a collective: it has a process group of its own.

    (With one group for several models the order of their collectives would depend on the order in which each rank's
    backward happens to fill their buckets.)

    Args:
        params: the parameters, the same on all ranks. Those that don't require a gradient when `refresh` is called
            are left out until it is called again.
        sparse_params: those among them whose gradients are sparse tensors (`nn.Embedding(sparse=True)`).
    """

    def __init__(self, params: Sequence[torch.nn.Parameter], sparse_params: Sequence[torch.nn.Parameter] = ()) -> None:
        self.enabled = True
        self._group = dist.new_group(backend=str(dist.get_backend_config()))
        self._handles: list[Any] = []
        self._buckets: list[_Bucket] = []
        self._sparse: list[_Slot] = []
        self._launched = 0
        self._task = -1
        self._signature: Any = None
        self.refresh(params, sparse_params)

    def refresh(self, params: Sequence[torch.nn.Parameter], sparse_params: Sequence[torch.nn.Parameter] = ()) -> None:
        """Follow changes of the parameters, their dtypes, devices or `requires_grad`. Cheap when there are none."""
        if not _in_backward():
            _abandon_all()
        signature = [(id(p), p.requires_grad, p.dtype, p.device) for p in params]
        if signature != self._signature:
            local = {id(slot.param) for slot in self.slots() if slot.local}
            self.close()
            self._signature = signature
            self._build([p for p in params if p.requires_grad], {id(p) for p in sparse_params}, local)
        for slot in self.slots():
            hooks.defer(slot.param, self._averages)

    def _averages(self) -> bool:
        return self.enabled and bool(self._handles)

    def _build(self, params: Sequence[torch.nn.Parameter], sparse_ids: set[int], local: set[int]) -> None:
        dense = [param for param in params if id(param) not in sparse_ids]
        self._buckets = [_Bucket([_Slot(param) for param in bucket]) for bucket in _plan_buckets(dense)]
        self._sparse = [_Slot(param) for param in params if id(param) in sparse_ids]
        for bucket in self._buckets:
            for slot in bucket.slots:
                self._attach(slot, hooks.Own(self._after, slot, bucket))
        for slot in self._sparse:
            self._attach(slot, hooks.Own(self._after_sparse, slot))
        for slot in self.slots():
            slot.local = id(slot.param) in local

    def _attach(self, slot: _Slot, after: Any) -> None:
        before = hooks.Own(self._before, slot)
        self._handles.append(slot.param.register_hook(before))  # type: ignore[no-untyped-call]
        self._handles.append(slot.param.register_post_accumulate_grad_hook(after))  # type: ignore[no-untyped-call]

    def slots(self) -> list[_Slot]:
        """The slots of all parameters."""
        return [slot for bucket in self._buckets for slot in bucket.slots] + self._sparse

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._buckets, self._sparse, self._signature = [], [], [], None

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take part in each backward through `outputs`, even if it reaches no parameter on this rank."""
        if self._buckets or self._sparse:
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(self._on_output)  # type: ignore[no-untyped-call]

    def _on_output(self, grad: torch.Tensor) -> None:
        if self.enabled:
            self._arm()

    def _arm(self) -> None:
        if self not in _armed:
            self._task = _graph_task()
            _armed.append(self)
            if len(_armed) == 1:
                torch.autograd.Variable._execution_engine.queue_callback(_finish_all)

    def _before(self, slot: _Slot, grad: torch.Tensor) -> None:
        if self.enabled:
            self._arm()
            slot.set_aside()

    def _after(self, slot: _Slot, bucket: _Bucket, param: torch.Tensor) -> None:
        if not self.enabled:
            slot.local = True
            return
        if param.grad is None or param.grad.layout != torch.strided:
            raise RuntimeError(
                "a sparse gradient for a parameter that belongs to no nn.Embedding or nn.EmbeddingBag with sparse=True "
                f"(shape {tuple(param.shape)}) can't be averaged over ranks"
            )
        again = slot.filled
        if again and bucket.work is not None:
            raise RuntimeError(
                "a parameter got its gradient twice in one backward, the second time inside torch.utils.checkpoint: "
                "pass use_reentrant=False to it"
            )
        slot.fill()
        bucket.pending -= not again
        # A backward inside a backward (reentrant checkpoints) may reach parameters again: then wait for the end.
        if _graph_task() == self._task:
            while self._launched < len(self._buckets) and not self._buckets[self._launched].pending:
                self._launch_next()

    def _after_sparse(self, slot: _Slot, param: torch.Tensor) -> None:
        if self.enabled:
            slot.filled = True
        else:
            slot.local = True

    def _launch_next(self) -> None:
        self._buckets[self._launched].launch(self._group)
        self._launched += 1

    def launch_rest(self) -> None:
        """Launch every bucket that isn't yet under way."""
        for bucket in self._buckets[self._launched :]:
            for slot in bucket.slots:
                if slot.local and not slot.filled and slot.param.grad is not None:
                    slot.fill()
                    bucket.pending -= 1
            self._launch_next()

    def finish(self, doubles: set[_Slot]) -> None:
        """Wait for the buckets and hand out the averages, but for `doubles`: another reducer does that."""
        self._launched = 0
        for bucket in self._buckets:
            bucket.finish(doubles)
        for slot in self._sparse:
            if slot in doubles:
                slot.reset()
            else:
                _finish_sparse(slot, self._group)

    def abandon(self) -> None:
        """Forget a backward that failed."""
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.reset()
        for slot in self.slots():
            slot.abandon()
        self._launched = 0


def _finish_sparse(slot: _Slot, group: Any) -> None:
    param, before = slot.param, slot.aside
    used = slot.filled or (slot.local and param.grad is not None)
    average = sparse.average(param.grad if used else None, param, group)
    if before is None and not used:
        before = param.grad
    slot.add(before, average)


# The reducers that take part in the backward that is running.
_armed: list[Reducer] = []


def _graph_task() -> int:
    return int(torch._C._current_graph_task_id())


def _in_backward() -> bool:
    return _graph_task() != -1


def _finish_all() -> None:
    """At the end of backward: first launch what is left of all models, then wait, so that no rank waits for another."""
    reducers = list(_armed)
    _armed.clear()
    with torch.no_grad():
        for reducer in reducers:
            reducer.launch_rest()
        doubles = _doubles(reducers) if len(reducers) > 1 else set()
        for reducer in reducers:
            reducer.finish(doubles)


def _doubles(reducers: Sequence[Reducer]) -> set[_Slot]:
    """Slots of parameters that belong to several models, except one each: that which set the old gradient aside."""
    slots = [slot for reducer in reducers for slot in reducer.slots()]
    kept: dict[int, _Slot] = {}
    for slot in slots:
        if id(slot.param) not in kept or slot.aside is not None:
            kept[id(slot.param)] = slot
    return {slot for slot in slots if kept[id(slot.param)] is not slot}


def _abandon_all() -> None:
    reducers = list(_armed)
    _armed.clear()
    for reducer in reducers:
        reducer.abandon()
