"""Averaging the parameters' gradients over the ranks during backward.

torch's own Reducer decides at forward which parameters backward will touch. It raises, or silently skips averaging, for
what `nn.DataParallel` takes without a word: parameters that get no gradient, several forwards before several
backwards, parts that are frozen and thawed. This one decides nothing ahead: each backward sends every bucket once,
in the same order on all ranks, whatever it touched; a flag per parameter tells whether any rank did.

Backward begins at a model's outputs. A hook there sets the gradients from before aside, so what `param.grad` holds
afterwards is new. A hook where a bucket's last gradient arrives sends the bucket; the end of backward sends the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import collectives, hooks, sparse, watchdog, world
from .buckets import Bucket, plan
from .place import here

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
        self._task = -1  # the backward that it takes part in
        self._local = False  # there are gradients that were never averaged (`no_sync`)
        self._order: list[torch.nn.Parameter] = []  # backward's
        self._first: set[int] = set()  # ids of those that backward reached before any output: the script uses them, too
        self._nested = False  # gradients came in backwards inside the backward (reentrant checkpoints)
        self._handles: list[Any] = []
        self._signature: Any = None
        self._params: list[torch.nn.Parameter] = []
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
            self.ids, given, sparse_ids = _ids(self._params), _ids(params), _ids(sparse_params)
            self._sparse = [param for param in self._params if id(param) in sparse_ids]
            self._order = [param for param in self._order if id(param) in given]
            known = _ids(self._order)
            self._first &= known
            self._order += [param for param in reversed(self._params) if id(param) not in known]
            self._observing = not self.ids <= known
            self._build()
        self.hooked = [
            param
            for param in self._params
            if (param._backward_hooks or param._post_accumulate_grad_hooks) and hooks.defer(param, self._averages)
        ]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        self._unhook()
        self._signature, self.ids = None, _ids([])
        self._params, self._sparse, self.hooked = [], list[Any](), list[Any]()
        self._buckets = list[Bucket]()

    def _build(self) -> None:
        """Make the buckets; put hooks on the last parameter of each, or on all as long as the order isn't known."""
        dense = self.ids - _ids(self._sparse)
        self._buckets = [Bucket(group) for group in plan([param for param in self._order if id(param) in dense])]
        last = [] if self._nested else [bucket.params[-1] for bucket in self._buckets[:-1]]
        first = [param for param in self._params if id(param) in self._first]
        if self._observing:
            last = first = self._params
        for param in first:
            self._hook(param.register_hook, self._on_reach, param)
        for param in last:
            on_gradient = self._on_arrival if self._observing else self._on_last
            self._hook(param.register_post_accumulate_grad_hook, on_gradient)

    def _hook(self, register: Any, *hook: Any) -> None:
        self._handles.append(register(hooks.Own(*hook)))

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for param in self._params:
            if param._backward_hooks is not None and not param._backward_hooks:
                param._backward_hooks = None  # an empty dict costs time in every backward

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take part in each backward through `outputs`, even if it reaches no parameter on this rank."""
        if self._params:
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(self._on_output)  # type: ignore[no-untyped-call]

    def _on_output(self, grad: torch.Tensor) -> None:
        self._arm()

    def _on_reach(self, param: torch.nn.Parameter, grad: Any) -> None:
        self._averages(param)

    def _on_arrival(self, param: torch.nn.Parameter) -> None:
        if self in _armed:
            self._arrived.pop(id(param), None)
            self._arrived[id(param)] = None
            self._nested |= self._task != _graph_task()

    def _on_last(self, param: torch.Tensor) -> None:
        if self._task == _graph_task() and not self._local:
            with torch.no_grad():
                while self._launched < len(self._buckets) - 1 and self._buckets[self._launched].complete():
                    self._launch_next()

    def _averages(self, param: torch.nn.Parameter) -> bool:
        """Whether the gradient that `param` is about to get is averaged, be it by another model's reducer."""
        if any(id(param) in reducer.ids for reducer in _armed):
            return True
        if self._arm():
            self._first.add(id(param))
        return self in _armed

    def _arm(self) -> bool:
        """Take part in the backward that is running. Returns whether gradients are averaged in it."""
        if self in _armed:
            return True
        if not self.enabled or not self._params:
            self._local = not self.enabled
            return False
        if not _armed:
            torch.autograd.Variable._execution_engine.queue_callback(_finish_all)
        if not self._local:
            theirs = {one for reducer in _armed for one in reducer.ids}  # these may have new gradients already
            grads = [(param, param.grad) for param in self._params]
            self.aside = [(param, grad) for param, grad in grads if grad is not None and id(param) not in theirs]
            for param, _ in self.aside:
                param.grad = None
        self._task, self._launched, self._arrived = _graph_task(), 0, dict[int, None]()
        _armed.append(self)
        return True

    def _launch_next(self) -> None:
        self._buckets[self._launched].launch(self._group)
        self._launched += 1

    def launch_rest(self) -> None:
        """Launch every bucket that isn't yet under way."""
        for bucket in self._buckets[: self._launched]:
            bucket.check()
        while self._launched < len(self._buckets):
            self._launch_next()
        self._sparse_grads = [param.grad for param in self._sparse]

    def finish(self) -> None:
        """Wait for the buckets and hand out the averages."""
        for bucket in self._buckets:
            bucket.finish()
        for param, grad in zip(self._sparse, self._sparse_grads):
            param.grad = sparse.average(grad, param, self._group)

    def reset(self) -> None:
        """Be ready for the next backward, with what this one has shown."""
        self.aside, self._local, self._task = [], False, -1
        if self._observing:
            self._agree_on_order()

    def abandon(self) -> None:
        """Forget a backward that failed. What it left in `param.grad` stays, or was cleared by the script since."""
        self.aside, self._task = [], -1
        for bucket in self._buckets:
            bucket.wait()

    def _agree_on_order(self) -> None:
        """Take over what rank 0 saw, if it saw any gradient; parameters that it saw none for come last."""
        places = {id(param): place for place, param in enumerate(self._params, 1)}
        order = [places.pop(one) for one in self._arrived if one in places]
        order += reversed(places.values())
        told = torch.tensor([order, [id(param) in self._first for param in self._params]])
        told = told.mul_(world.rank() == 0 and len(self._arrived) > 0).to(collectives.carrier(self._params[0].device))
        collectives.start_sum(told, self._group).wait()
        order, first = told.tolist()
        if any(order):
            rest = [param for param in self._order if id(param) not in self.ids]
            self._order = [self._params[place - 1] for place in order] + rest
            self._first = {id(param) for param, is_first in zip(self._params, first) if is_first}
            self._observing = False
            self._unhook()
            self._build()


# The reducers that take part in the backward that is running.
_armed: list[Reducer] = []


def _graph_task() -> int:
    return int(torch._C._current_graph_task_id())


def _ids(params: Params) -> set[int]:
    return {id(param) for param in params}


@torch.no_grad()
def _finish_all() -> None:
    """At the end of backward: first launch what is left of all models, then wait, so that no rank waits for another."""
    reducers = list(_armed)
    _armed.clear()
    for reducer in reducers:
        reducer.launch_rest()
    with watchdog.Waiting("the gradients of a backward", here().line):
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
