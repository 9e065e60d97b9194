"""Averaging the parameters' gradients over the ranks during backward.

torch's own Reducer decides at forward which parameters backward will touch. It raises, or silently skips averaging, for
what `nn.DataParallel` takes without a word: parameters that get no gradient, several forwards before several
backwards, parts that are frozen and thawed. This one decides nothing ahead: each backward launches every bucket once,
in the same order on all ranks, whatever it touched; a flag per parameter tells whether any rank did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch
import torch.distributed as dist

from . import hooks, sparse
from .buckets import Bucket, Slot, Together, make_buckets


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
        self._buckets: list[Bucket] = []
        self._last: Together | None = None
        self._sparse: list[Slot] = []
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
        self._buckets, self._last = make_buckets(dense) if dense else ([], None)
        self._sparse = [Slot(param) for param in params if id(param) in sparse_ids]
        for bucket in self._buckets:
            for slot in bucket.slots:
                self._attach(slot, hooks.Own(self._after, slot, bucket))
        for slot in self._sparse:
            self._attach(slot, hooks.Own(self._after_sparse, slot))
        for slot in self.slots():
            slot.local = id(slot.param) in local

    def _attach(self, slot: Slot, after: Any) -> None:
        before = hooks.Own(self._before, slot)
        self._handles.append(slot.param.register_hook(before))  # type: ignore[no-untyped-call]
        self._handles.append(slot.param.register_post_accumulate_grad_hook(after))  # type: ignore[no-untyped-call]

    def slots(self) -> list[Slot]:
        """The slots of all parameters."""
        return self._dense() + self._sparse

    def _dense(self) -> list[Slot]:
        return [slot for bucket in self._buckets for slot in bucket.slots]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._buckets, self._last, self._sparse, self._signature = [], [], None, [], None

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

    def _before(self, slot: Slot, grad: torch.Tensor) -> None:
        if self.enabled:
            self._arm()
            slot.set_aside()

    def _after(self, slot: Slot, bucket: Bucket, param: torch.Tensor) -> None:
        if not self.enabled:
            slot.local = True
            return
        if param.grad is None or param.grad.layout != torch.strided:
            raise RuntimeError(
                "a sparse gradient for a parameter that belongs to no nn.Embedding or nn.EmbeddingBag with sparse=True "
                f"(shape {tuple(param.shape)}) can't be averaged over ranks"
            )
        if slot.filled and bucket.work is not None:
            raise RuntimeError(
                "a parameter got its gradient twice in one backward, the second time inside torch.utils.checkpoint: "
                "pass use_reentrant=False to it"
            )
        bucket.take(slot)
        # A backward inside a backward (reentrant checkpoints) may reach parameters again: then wait for the end.
        if _graph_task() == self._task:
            while self._launched < len(self._buckets) and not self._buckets[self._launched].pending:
                self._launch_next()

    def _after_sparse(self, slot: Slot, param: torch.Tensor) -> None:
        if self.enabled:
            slot.filled = True
        else:
            slot.local = True

    def _launch_next(self) -> None:
        bucket = self._buckets[self._launched]
        if bucket is self._last:
            self._last.tell([slot.filled for slot in self._dense()])
        bucket.launch(self._group)
        self._launched += 1

    def launch_rest(self) -> None:
        """Launch every bucket that isn't yet under way."""
        for bucket in self._buckets[self._launched :]:
            for slot in bucket.slots:
                if slot.local and not slot.filled and slot.param.grad is not None:
                    bucket.take(slot)
            self._launch_next()

    def finish(self, doubles: set[Slot]) -> None:
        """Wait for the buckets and hand out the averages, but for `doubles`: another reducer does that."""
        self._launched = 0
        used = self._used()
        for bucket in self._buckets:
            bucket.finish(doubles, used)
        for slot in self._sparse:
            if slot in doubles:
                slot.reset()
            else:
                _finish_sparse(slot, self._group)

    def _used(self) -> Callable[[Slot], bool]:
        """Whether any rank has a gradient for a parameter. The flags are only read where this rank can't know."""
        if self._last is None or not any(bucket.pending for bucket in self._buckets):
            return lambda slot: True
        used = dict(zip(self._dense(), self._last.told()))
        return lambda slot: used[slot]

    def abandon(self) -> None:
        """Forget a backward that failed."""
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.reset()
        for slot in self.slots():
            slot.abandon()
        self._launched = 0


def _finish_sparse(slot: Slot, group: Any) -> None:
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


def _doubles(reducers: Sequence[Reducer]) -> set[Slot]:
    """Slots of parameters that belong to several models, except one each: that which set the old gradient aside."""
    slots = [slot for reducer in reducers for slot in reducer.slots()]
    kept: dict[int, Slot] = {}
    for slot in slots:
        if id(slot.param) not in kept or slot.aside is not None:
            kept[id(slot.param)] = slot
    return {slot for slot in slots if kept[id(slot.param)] is not slot}


def _abandon_all() -> None:
    reducers = list(_armed)
    _armed.clear()
    for reducer in reducers:
        reducer.abandon()
