"""Averaging the parameters' gradients over the ranks during backward.

torch's own Reducer decides at forward which parameters backward will touch. It raises, or silently skips averaging, for
what `nn.DataParallel` takes without a word: parameters that get no gradient, several forwards before several
backwards, parts that are frozen and thawed. This one decides nothing ahead: each backward sends every bucket once,
in the same order on all ranks, whatever it touched; a flag per parameter tells whether any rank did.

Backward begins at a model's outputs. A hook there sets the gradients from before aside, so what `param.grad` holds
afterwards is new. A hook where a bucket's last gradient arrives sends the bucket; the end of backward sends the rest.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import collectives, waiting, world
from .buckets import Bucket, average_sparse, plan

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
        self.piled_up = False  # there are gradients that were never averaged (`no_sync`)
        backend = str(dist.get_backend_config())
        self._group = dist.new_group(backend=backend, timeout=waiting.NEVER)
        # A script that makes a model for each fold would be left with the threads of hundreds of groups. (NCCL's wait
        # for the other ranks when they are destroyed, which may be elsewhere.)
        if "nccl" not in backend:
            weakref.finalize(self, _destroy, self._group).atexit = False
        self._order: Params = []  # backward's
        self._first: set[torch.nn.Parameter] = set()  # reached before any output: the script uses them, too
        self._nested = False  # gradients came in backwards inside the backward (reentrant checkpoints)
        self._launched = 0  # buckets
        self._arrived: dict[torch.nn.Parameter, None] = {}  # in backward's order
        self._handles: list[Any] = []
        weakref.finalize(self, _remove, self._handles).atexit = False
        self._signature: Any = None
        self.refresh(params, sparse_params)

    def refresh(self, params: Params, sparse_params: Params = ()) -> None:
        """Follow changes of the parameters, their dtypes, devices or `requires_grad`. Cheap when there are none."""
        if _graph_task() == -1:
            _running.end()  # it failed
        signature = [(id(p), p.requires_grad, p.dtype, p.device) for p in params]
        if signature != self._signature and self not in _running.reducers:
            self._signature = signature
            self.params = dict.fromkeys(param for param in params if param.requires_grad)
            self._sparse = dict.fromkeys(param for param in sparse_params if param.requires_grad)
            self._first.intersection_update(params)
            given = set(params)
            known = [param for param in self._order if param in given]
            self._order = list(dict.fromkeys([*known, *reversed(self.params)]))
            self._observing = len(self._order) > len(known)
            self._build()

    def close(self) -> None:
        """Average nothing any more."""
        self.refresh([])

    def _build(self) -> None:
        """Make the buckets; put hooks on the last parameter of each, or on all as long as the order isn't known."""
        _remove(self._handles)
        dense = [param for param in self._order if param in self.params and param not in self._sparse]
        self._buckets = [Bucket(group) for group in plan(dense)]
        hooked = {bucket.params[-1] for bucket in self._buckets[:-1]} | self._first
        hooked = {param for param in self.params if self._observing or param in hooked}
        add: Any = torch.nn.Parameter.register_post_accumulate_grad_hook
        self._handles += [add(param, _Hook(self)) for param in hooked]

    @contextlib.contextmanager
    def in_forward(self, has_rows: bool) -> Iterator[None]:
        """While a module's forward runs: a backward that it calls adds up what the ranks make of their rows.

        So do `nn.DataParallel`'s replicas, each with a loss of its own. (An output's gradient tells each rank its share
        of one loss.)

        Args:
            has_rows: whether this rank's part counts.
        """
        backward = torch.autograd.backward
        torch.autograd.backward = functools.partial(self._add_up, backward, has_rows)
        try:
            yield
        finally:
            torch.autograd.backward = backward

    def _add_up(self, backward: Callable[..., None], has_rows: bool, /, *args: Any, **kwargs: Any) -> None:
        before = _Backward()
        before.reducers, before.before = [self], {param: param.grad for param in self.params}
        averages, self.enabled = self.enabled, False
        for param in self.params:
            param.grad = None
        try:
            backward(*args, **kwargs)
        finally:
            self.enabled = averages
        for grad in [param.grad.data for param in self.params if param.grad is not None]:
            grad.mul_(world.world_size()) if has_rows else grad.zero_()
        self._launched, self._arrived = 0, {}
        before.finish() if averages else before.add_up()
        self.piled_up |= not averages

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take part in each backward through `outputs`, even if it reaches no parameter on this rank."""
        for output in outputs if self.params else ():
            if output.requires_grad:
                output.register_hook(self._take_part)  # type: ignore[no-untyped-call]

    def _take_part(self, grad: torch.Tensor | None, reached: torch.nn.Parameter | None = None) -> None:
        self.piled_up |= not self.enabled
        if self.enabled and self not in _running.reducers:
            self._launched, self._arrived = 0, {}
            _running.add(self, reached)

    def on_gradient(self, param: torch.nn.Parameter) -> None:
        if self.enabled and param not in _running.before:
            self._first.add(param)
            self._take_part(None, reached=param)
        if self in _running.reducers:
            self._nested |= _running.task != _graph_task()
            if self._observing:
                self._arrived.pop(param, None)
                self._arrived[param] = None
            elif not self._nested and not self.piled_up:
                self.launch()

    @torch.no_grad()
    def launch(self, rest: bool = False) -> None:
        """Launch the buckets that are complete, in their order, or at the end of backward all the rest."""
        for bucket in self._buckets[: self._launched] if rest else ():
            bucket.check()
        while self._launched < len(self._buckets) and (rest or self._buckets[self._launched].complete()):
            self._buckets[self._launched].launch(self._group)
            self._launched += 1

    def finish(self) -> None:
        """Wait for the buckets and hand out the averages."""
        for bucket in self._buckets:
            bucket.finish()
        for param in self._sparse:
            param.grad = average_sparse(param.grad, param)
        self.piled_up = False
        if self._observing:
            self._agree_on_order()

    def _agree_on_order(self) -> None:
        """Take over what rank 0 saw, if it saw any gradient; parameters that it saw none for come last."""
        params = list(self.params)
        places = {param: place for place, param in enumerate(params)}
        told = torch.tensor([places[param] for param in self._arrived] + [-1] * (len(params) - len(self._arrived)))
        collectives.broadcast_coalesced([told])
        order = [params[place] for place in told.tolist() if place >= 0]
        if order:
            self._order = list(dict.fromkeys([*order, *self._order]))
            self._observing = False
            self._build()


class _Hook:
    """Hands a parameter's gradient to its reducer.

    Python's garbage collector doesn't see what hooks on parameters hold: with a reference to the reducer, which holds
    them, a model that is gone would keep its memory.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = weakref.ref(reducer)

    def __call__(self, param: torch.nn.Parameter) -> None:
        reducer = self._reducer()
        if reducer is not None:
            reducer.on_gradient(param)


class _Backward:
    """A backward in which models take part: one at a time, from the first output that it reaches to its end.

    The script's own hooks on parameters (`param.register_hook(lambda grad: grad.clamp(-1, 1))`) have to see the
    gradient over all ranks, as with `nn.DataParallel`, and not this rank's part. So they are taken off meanwhile, and
    called at the end.
    """

    def __init__(self) -> None:
        self.reducers: list[Reducer] = []
        self.task = -1  # autograd's number of it
        self.before: dict[torch.nn.Parameter, torch.Tensor | None] = {}  # what was set aside of each gradient averaged
        self._hooks: list[tuple[torch.nn.Parameter, Any, dict[int, Any]]] = []

    def add(self, reducer: Reducer, reached: torch.nn.Parameter | None) -> None:
        """Average a model's gradients.

        Args:
            reducer: the model's.
            reached: a parameter whose new gradient has been added to the one from before. The sum is averaged then:
                what was there is the same on all ranks.
        """
        if not self.reducers:
            self.task = _graph_task()
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.reducers.append(reducer)
        if reached is not None:
            self.before[reached] = None
        for param in [param for param in reducer.params if param not in self.before]:
            self.before[param] = grad = None if reducer.piled_up else param.grad
            if grad is not None:
                param.grad = None
            for hooks in (param._backward_hooks, param._post_accumulate_grad_hooks):
                if hooks:
                    taken = {key: hooks.pop(key) for key, hook in list(hooks.items()) if _is_scripts(hook)}
                    self._hooks.append((param, hooks, taken))

    def end(self) -> None:
        """Make room for the next one."""
        global _running
        _running = _Backward()
        for _, hooks, taken in self._hooks:
            hooks.update(taken)

    @torch.no_grad()
    def finish(self) -> None:
        """First launch what is left of all models, then wait, so that no rank waits for another."""
        self.end()
        for reducer in self.reducers:
            reducer.launch(rest=True)
        works = [bucket.work for reducer in self.reducers for bucket in reducer._buckets]
        with waiting.Waiting("the gradients of a backward", works):
            for reducer in self.reducers:
                reducer.finish()
        self.add_up()

    @torch.no_grad()
    def add_up(self) -> None:
        """Call the script's hooks with the averages, and add these to the gradients from before, as autograd would."""
        hooked = dict.fromkeys(param for param, *_ in self._hooks if param.grad is not None)
        for param in hooked:
            param.grad = _call(param._backward_hooks, param.grad)
        sums = []
        for param, old in self.before.items():
            if old is not None:
                new, param.grad = param.grad, old
                if new is not None and old.layout == new.layout == torch.strided:
                    sums.append((old, new))
                elif new is not None:
                    param.grad = old + new
        if sums:
            torch._foreach_add_(*zip(*sums))
        for param in hooked:
            _call(param._post_accumulate_grad_hooks, param)


_running = _Backward()


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _destroy(group: Any) -> None:
    if group in dist.distributed_c10d._world.pg_map:  # or the script has destroyed all groups itself
        dist.destroy_process_group(group)


def _graph_task() -> int:
    return int(torch._C._current_graph_task_id())


def _is_scripts(hook: Any) -> bool:
    return not isinstance(hook, _Hook)


def _call(hooks: Any, value: Any) -> Any:
    """Call the script's `hooks`, each with what the one before made of `value`, and return what becomes of it."""
    for hook in filter(_is_scripts, list((hooks or {}).values())):
        changed = hook(value)
        value = value if changed is None else changed
    return value
