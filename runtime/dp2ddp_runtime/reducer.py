"""Averaging the parameters' gradients over the ranks during backward.

torch's own Reducer decides at forward which parameters backward will touch. It raises, or silently skips averaging, for
what `nn.DataParallel` takes without a word: parameters that get no gradient, several forwards before several
backwards, parts that are frozen and thawed. This one decides nothing ahead: each backward sends every bucket once,
in the same order on all ranks, whatever it touched; a flag per parameter tells whether any rank did.

Backward begins at a model's outputs. A hook there sets the gradients from before aside, so what `param.grad` holds
afterwards is new. A hook where a bucket's last gradient arrives sends the bucket; the end of backward sends the rest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import collectives, hooks, sparse, world
from .buckets import make_buckets

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
        self._group = dist.new_group(backend=str(dist.get_backend_config()))
        self._task = -1  # the backward that is being taken part in
        self._local = False  # there are gradients that were never averaged (`no_sync`)
        self._order: list[torch.nn.Parameter] = []  # as backward reaches them
        self._first: set[int] = set()  # those reached before any output, as the script uses them directly; by id
        self._nested = False  # backward runs in pieces (reentrant checkpoints): what is there may not be all
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
            self.ids, sparse_ids, given = _ids(self._params), _ids(sparse_params), _ids(params)
            self._sparse = [param for param in self._params if id(param) in sparse_ids]
            self._order = [param for param in self._order if id(param) in given]
            self._first &= _ids(self._order)
            new = self.ids - _ids(self._order)
            self._order += [param for param in reversed(self._params) if id(param) in new]
            self._observing = bool(new)
            self._build()
        self.hooked = [
            param
            for param in self._params
            if (param._backward_hooks or param._post_accumulate_grad_hooks) and hooks.defer(param, self._averages)
        ]

    def _build(self) -> None:
        """Make buckets in backward's order, with hooks on the last parameter of each, and on those that come first."""
        dense = self.ids - _ids(self._sparse)
        self._buckets = make_buckets([param for param in self._order if id(param) in dense])
        if not self._observing:
            lasts = [] if self._nested else [bucket.params[-1] for bucket in self._buckets[:-1]]
            first = [param for param in self._params if id(param) in self._first]
            self._handles = [
                *(param.register_post_accumulate_grad_hook(hooks.Own(self._on_last)) for param in lasts),
                *(param.register_hook(hooks.Own(self._before, param)) for param in first),
            ]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._buckets, self._params, self._sparse = [], [], [], []
        self.ids, self.hooked, self._nodes = set[int](), [], []
        self._signature: Any = None

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take part in each backward through `outputs`, even if it reaches no parameter on this rank."""
        if self._params:
            if self._observing and not self._nodes:
                self._observe()
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(self._on_output)  # type: ignore[no-untyped-call]

    def _on_output(self, grad: torch.Tensor) -> None:
        self._arm()

    def _arm(self) -> bool:
        """Take part in the backward that is running. Returns whether gradients are averaged in it."""
        if self in _armed or not self._params:
            return self in _armed
        if not self.enabled:
            self._local = True
            return False
        if not _armed:
            torch.autograd.Variable._execution_engine.queue_callback(_finish_all)
        if not self._local:
            theirs = {one for reducer in _armed for one in reducer.ids}  # which may have new gradients already
            grads = [(param, param.grad) for param in self._params]
            self.aside = [(param, grad) for param, grad in grads if grad is not None and id(param) not in theirs]
            for param, _ in self.aside:
                param.grad = None
        self._task, self._launched, self._arrived = _graph_task(), 0, dict[int, None]()
        _armed.append(self)
        return True

    def _averages(self, param: torch.nn.Parameter) -> bool:
        """Whether the gradient that `param` is about to get is averaged, here or by another model's reducer."""
        return _is_averaged(param) or self._arm()

    def _on_last(self, param: torch.Tensor) -> None:
        if self._task == _graph_task() and not self._local:
            with torch.no_grad():
                while self._launched < len(self._buckets) - 1 and self._buckets[self._launched].complete():
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
        # The flags are only read where this rank can't know: that waits for the device.
        lacking = any(grad is None for bucket in self._buckets for grad in bucket.grads)
        used = iter(self._buckets[-1].told()) if lacking else itertools.repeat(True)
        for bucket in self._buckets:
            bucket.hand_out(used)
        for param, grad in zip(self._sparse, self._sparse_grads):
            param.grad = sparse.average(grad, param, self._group)

    def reset(self) -> None:
        """Be ready for the next backward, with what has been learned from this one."""
        self.aside, self._local, self._task = [], False, -1
        if self._observing:
            self._agree_on_order()

    def abandon(self) -> None:
        """Forget a backward that failed. What it left in `param.grad` stays, or was cleared by the script since."""
        self.aside, self._task = [], -1
        for bucket in self._buckets:
            bucket.wait()

    def _observe(self) -> None:
        """Follow a backward, with hooks on the graph's own nodes: hooks on parameters cost time in every step."""
        self._nodes = [param.view_as(param).grad_fn.next_functions[0][0] for param in self._params]
        for param, node in zip(self._params, self._nodes):
            node.register_prehook(functools.partial(self._before, param))
            node.register_hook(functools.partial(self._after, param))

    def _before(self, param: torch.nn.Parameter, grads: Any) -> None:
        if not _is_averaged(param) and self._arm():
            self._first.add(id(param))

    def _after(self, param: torch.nn.Parameter, *grads: Any) -> None:
        if self in _armed:
            self._arrived.pop(id(param), None)  # again, in a nested backward
            self._arrived[id(param)] = None
            self._nested |= self._task != _graph_task()

    def _agree_on_order(self) -> None:
        """Take over the order that rank 0 saw. What it didn't see comes last."""
        places = {id(param): place for place, param in enumerate(self._params)}
        order = [places.pop(one) for one in self._arrived if one in places] + [*reversed(places.values())]
        told = torch.tensor([order, [id(param) in self._first for param in self._params]])
        told = told.mul_(world.rank() == 0).to(collectives.carrier(self._params[0].device))
        collectives.start_sum(told, self._group).wait()
        order, first = told.tolist()
        self._order = [self._params[place] for place in order] + [p for p in self._order if id(p) not in self.ids]
        self._first = {id(param) for param, is_first in zip(self._params, first) if is_first}
        self._observing, self._nodes = False, []
        self._build()


# The reducers that take part in the backward that is running.
_armed: list[Reducer] = []


def _graph_task() -> int:
    return int(torch._C._current_graph_task_id())


def _ids(params: Iterable[torch.nn.Parameter]) -> set[int]:
    return {id(param) for param in params}


def _is_averaged(param: torch.nn.Parameter) -> bool:
    return any(id(param) in reducer.ids for reducer in _armed)


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
        reducer.reset()


def _add_up(reducers: Sequence[Reducer]) -> None:
    """Call the script's hooks with the averages, and add these to the gradients from before, as autograd would."""
    hooked = {id(param): param for reducer in reducers for param in reducer.hooked if param.grad is not None}
    for param in hooked.values():
        param.grad = hooks.call(param._backward_hooks, param.grad)
    before, new = [], []
    for param, old in (pair for reducer in reducers for pair in reducer.aside):
        grad, param.grad = param.grad, old
        if grad is not None and old.layout == grad.layout == torch.strided:
            before.append(old)
            new.append(grad)
        elif grad is not None:
            param.grad = old + grad
    if before:
        torch._foreach_add_(before, new)
    for param in hooked.values():
        hooks.call(param._post_accumulate_grad_hooks, param)


def _abandon_all() -> None:
    for reducer in _armed:
        reducer.abandon()
    _armed.clear()
