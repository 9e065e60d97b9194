"""Averaging the parameters' gradients over the ranks during backward.

torch's own Reducer decides at forward which parameters backward will touch. It raises, or silently skips averaging, for
what `nn.DataParallel` takes without a word: parameters that get no gradient, several forwards before several
backwards, parts that are frozen and thawed. This one decides nothing ahead: each backward sends every bucket once,
in the same order on all ranks, whatever it touched; a flag per parameter tells whether any rank did.

Backward begins at a model's outputs. A hook there sets the gradients from before aside, so that what `param.grad` holds
afterwards is new. A hook on the parameter that completes a bucket sends it; the end of backward sends what is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import hooks, sparse
from .buckets import Bucket, make_buckets
from .order import BackwardOrder

Params = Sequence[torch.nn.Parameter]


class Reducer:
    """Averages gradients over the ranks. Making one is a collective: it has a process group of its own.

    (With one group for several models the order of their collectives would depend on the order in which each rank's
    backward happens to fill their buckets.)

    Args:
        params: the parameters, the same on all ranks. Those that don't require a gradient when `refresh` is called
            are left out until it is called again.
        sparse_params: those among them whose gradients are sparse tensors (`nn.Embedding(sparse=True)`).
    """

    def __init__(self, params: Params, sparse_params: Params = ()) -> None:
        self.enabled = True
        self.aside: list[tuple[torch.nn.Parameter, torch.Tensor]] = []  # gradients from before this backward
        self.hooked: list[torch.nn.Parameter] = []  # parameters with hooks of the script's
        self._group = dist.new_group(backend=str(dist.get_backend_config()))
        self._order = BackwardOrder(self._begins_with)
        self._local = False  # there are gradients that were never averaged (`no_sync`)
        self._task = -1  # the backward in which buckets may be sent early
        self._launched = 0
        self._handles: list[Any] = []
        self.close()
        self.refresh(params, sparse_params)

    def refresh(self, params: Params, sparse_params: Params = ()) -> None:
        """Follow changes of the parameters, their dtypes, devices or `requires_grad`. Cheap when there are none."""
        if _graph_task() == -1:
            _abandon_all()
        signature = [(id(p), p.requires_grad, p.dtype, p.device) for p in params]
        if signature != self._signature and self not in _armed:
            self.close()
            self._signature = signature
            self._params = [param for param in params if param.requires_grad]
            self._ids = {id(param) for param in self._params}
            sparse_ids = {id(param) for param in sparse_params}
            self._sparse = [param for param in self._params if id(param) in sparse_ids]
            self._order.follow(self._params, params)
            self._build()
        self.hooked = [
            param
            for param in self._params
            if (param._backward_hooks or param._post_accumulate_grad_hooks) and hooks.defer(param, self._averages)
        ]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._buckets, self._params, self._sparse = [], [], [], []
        self._ids: set[int] = set()
        self._signature: Any = None
        self._order.follow((), ())

    def _build(self) -> None:
        """Make the buckets, and put hooks on the last parameter of each, and on those where backward may begin."""
        sparse_ids = {id(param) for param in self._sparse}
        dense = [param for param in self._order.sort(self._params) if id(param) not in sparse_ids]
        self._buckets = make_buckets(dense) if dense else []
        early = itertools.takewhile(lambda bucket: self._order.at_once(bucket.params), self._buckets[:-1])
        lasts = [bucket.params[-1] for bucket in early]
        self._handles = [
            *(p.register_post_accumulate_grad_hook(hooks.Own(self._on_last)) for p in lasts),
            *(p.register_hook(hooks.Own(self._on_first, p)) for p in self._order.first()),
        ]
        self._early = len(lasts)

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take part in each backward through `outputs`, even if it reaches no parameter on this rank."""
        if self._params:
            self._order.observe()
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(self._on_output)

    def _on_output(self, grad: torch.Tensor) -> None:
        self._arm()

    def _on_first(self, param: torch.nn.Parameter, grad: torch.Tensor) -> None:
        self._averages(param)

    def _averages(self, param: torch.nn.Parameter) -> bool:
        """Whether the gradient that `param` is about to get will be averaged."""
        return _is_averaged(param) or self._arm()

    def _begins_with(self, param: torch.nn.Parameter) -> bool:
        return not _is_averaged(param) and self._arm()

    def _arm(self) -> bool:
        """Take part in the backward that is running; whether gradients are averaged in it."""
        if self in _armed or not self._params:
            return self in _armed
        if not self.enabled:
            self._local = True
            return False
        if not _armed:
            torch.autograd.Variable._execution_engine.queue_callback(_finish_all)
        self._launched, self._task = 0, -1
        if not self._local:
            self._task = _graph_task()
            others = {i for reducer in _armed for i in reducer._ids}  # theirs may hold new gradients already
            old = [(param, param.grad) for param in self._params if id(param) not in others]
            self.aside = [(param, grad) for param, grad in old if grad is not None]
            for param, _ in self.aside:
                param.grad = None
        self._order.restart()
        _armed.append(self)
        return True

    def _on_last(self, param: torch.Tensor) -> None:
        # A backward inside a backward (reentrant checkpoints) may reach parameters again: then wait for the end.
        if self._task == _graph_task():
            with torch.no_grad():
                while self._launched < self._early and self._buckets[self._launched].complete():
                    self._launch_next()

    def _launch_next(self) -> None:
        bucket = self._buckets[self._launched]
        self._launched += 1
        bucket.fill()
        if bucket is self._buckets[-1]:
            bucket.tell([grad is not None for each in self._buckets for grad in each.grads])
        bucket.send(self._group)

    def launch_rest(self) -> None:
        """Launch every bucket that isn't yet under way."""
        for bucket in self._buckets[: self._launched]:
            bucket.check()
        while self._launched < len(self._buckets):
            self._launch_next()
        self._sparse_grads = [param.grad for param in self._sparse]

    def finish(self) -> None:
        """Wait for the buckets and hand out the averages."""
        grads = [grad for bucket in self._buckets for grad in bucket.grads]
        # The flags are only read where this rank can't know.
        used = self._buckets[-1].told() if any(grad is None for grad in grads) else [True] * len(grads)
        for bucket in self._buckets:
            bucket.wait()
            own, used = used[: len(bucket.params)], used[len(bucket.params) :]
            bucket.hand_out(own)
        for param, grad in zip(self._sparse, self._sparse_grads):
            param.grad = sparse.average(grad, param, self._group)

    def end(self) -> None:
        """Get ready for the next backward."""
        self.aside, self._local, self._task = [], False, -1
        if not self._order.known:
            self._order.agree(self._group)
            self._build()

    def abandon(self) -> None:
        """Forget a backward that failed. What it left in `param.grad` stays, or was cleared by the script since."""
        for bucket in self._buckets:
            bucket.wait()
        self.aside, self._task = [], -1


# The reducers that take part in the backward that is running.
_armed: list[Reducer] = []


def _is_averaged(param: torch.nn.Parameter) -> bool:
    return any(id(param) in reducer._ids for reducer in _armed)


def _graph_task() -> int:
    return int(torch._C._current_graph_task_id())


@torch.no_grad()
def _finish_all() -> None:
    """At the end of backward: first launch what is left of all models, then wait, so that no rank waits for another."""
    reducers = list(_armed)
    _armed.clear()
    for reducer in reducers:
        reducer.launch_rest()
    for reducer in reducers:
        reducer.finish()
    _add_up(reducers)
    for reducer in reducers:
        reducer.end()


def _add_up(reducers: Sequence[Reducer]) -> None:
    """Call the script's hooks with the averages, and add these to the gradients from before."""
    hooked = {id(param): param for reducer in reducers for param in reducer.hooked if param.grad is not None}
    for param in hooked.values():
        param.grad = hooks.on_gradient(param, param.grad)
    before, new = [], []
    for param, old in (pair for reducer in reducers for pair in reducer.aside):
        grad = param.grad
        if grad is None or old.layout == grad.layout == torch.strided:
            param.grad = old
        else:
            param.grad = old + grad
        if grad is not None and param.grad is old:
            before.append(old)
            new.append(grad)
    if before:
        torch._foreach_add_(before, new)
    for param in hooked.values():
        hooks.on_accumulated(param)


def _abandon_all() -> None:
    reducers = list(_armed)
    _armed.clear()
    for reducer in reducers:
        reducer.abandon()
