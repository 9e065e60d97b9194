"""Deferred batches: tensors that are the whole batch to the script, and hold this rank's rows of it.

Nothing travels that nobody looks at. The wrapped model takes the rows as they are; what keeps rows apart (`rowwise`)
works on the rows. Everything else gets the whole batch, gathered once, at that moment: a collective. All ranks get
there together, because every rank runs every line; a rank that looks alone ends with an error that names its line.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import math
import multiprocessing.process
import multiprocessing.queues
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch._compile import _disable_dynamo  # the public one takes a second to import where nothing is compiled
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..base import nesting, world
from ..gradients.adjoint import attach
from ..ranks.collectives import gather_rows
from ..ranks.exchange import Piggybacked, exchange, piggybacked

#: Bytes of a whole batch that is not worth a collective of its own: it travels with the next one.
SMALL = 1 << 15

Rule = Callable[[Any, Any, Any], Any]
#: What torch's functions do to deferred tensors, where they need no other rank: func, args, kwargs -> the result, or
#: NotImplemented for what needs the whole batch after all.
RULES: dict[Any, Rule] = {}


class ViewBase(NamedTuple):
    """What a deferred tensor was made from, where it may share memory with that, or is better made again from it."""

    parent: Deferred
    view_fn: Callable[[torch.Tensor], torch.Tensor]


class Deferred(torch.Tensor):
    """A whole batch of which this process holds its own rows. Made by `defer`.

    Attributes:
        rows: this rank's rows; rank 0's on a rank that has none.
        sizes: how many rows each rank has, along dimension `batch_dim`.
        allows_reordered_sum: whether it comes from a model's outputs: sums over its rows may then be rounded in another
            order.
        tokens: what goes with the rows' gradients (`adjoint`).
        number: of those that this rank has made.
    """

    rows: torch.Tensor
    sizes: tuple[int, ...]
    batch_dim: int
    allows_reordered_sum: bool
    tokens: tuple[torch.Tensor, ...]
    number: int
    _view_base: ViewBase | None
    _views: list[weakref.ref[Deferred]]
    _data: torch.Tensor | None  # the whole batch
    _graph: torch.Tensor | None  # the same, with autograd
    _node: Any  # what the wrapper's own gradient goes to

    @staticmethod
    def __new__(cls, rows: torch.Tensor, sizes: Sequence[int], dim: int) -> Deferred:
        size = list(rows.shape)
        size[dim] = sum(sizes)
        make: Any = torch.Tensor._make_wrapper_subclass
        new: Deferred = make(cls, size, dtype=rows.dtype, device=rows.device)
        return new

    @property
    def is_materialized(self) -> bool:
        """Whether the whole batch is here: somebody looked at it, or it came along with something else."""
        return self._data is not None

    @property
    def is_rows(self) -> bool:
        """Whether what is done to the rows is done to the whole batch: not once that is here.

        Nor if autograd knows more of it than of its rows: a function of the script's has made it, from others.
        """
        return self._data is None and _grad_fn(self) is self._node

    def materialize(self) -> None:
        """Gather the whole batch, unless it is here. A collective.

        All that shares memory with it is materialized as well, so that what is written into one is seen in the others,
        as in the original. After that it is an ordinary tensor in all but name.
        """
        if self._data is not None:
            return
        if self._view_base is not None:
            self._view_base.parent.materialize()
            return
        if _nbytes(self) <= SMALL:
            piggybacked["look"] = self.as_piggybacked()
        exchange(f"a look at a batch of shape {tuple(self.shape)}, {self.dtype}")
        if self._data is None:
            self._take(gather_rows(self.rows, self.sizes, self.batch_dim))

    def as_piggybacked(self) -> Piggybacked:
        """This rank's share, which brings the whole batch when it travels."""
        own = self.rows if self.sizes[world.rank()] else self.rows.narrow(self.batch_dim, 0, 0)

        def arrive(shares: list[torch.Tensor]) -> None:
            if isinstance(self, Deferred) and self._data is None:
                self._take(torch.cat(shares, self.batch_dim).to(self.rows.device))

        return Piggybacked(own, arrive)

    def _take(self, data: torch.Tensor) -> None:
        self._data = data
        for ref in self._views:
            view = ref()
            if view is not None and view._view_base is not None:
                with torch.no_grad():
                    view._take(view._view_base.view_fn(data))

    def whole(self) -> torch.Tensor:
        """The whole batch, as an ordinary tensor. A collective, unless it is here."""
        self.materialize()
        assert self._data is not None
        if not torch.is_grad_enabled():
            return self._data
        if _grad_fn(self) is not self._node:
            found: torch.Tensor = _Unwrap.apply(self)
            return found
        if not self.rows.requires_grad:
            return self._data
        if self._graph is None:
            if self._view_base is not None:
                self._graph = self._view_base.view_fn(self._view_base.parent.whole())
            else:
                self._graph = attach(self.rows, self._data, self.sizes, self.batch_dim, self.tokens)
        return self._graph

    def become_plain(self) -> None:
        """Be an ordinary tensor from now on, as all with its memory and no graph. A collective, unless it is here."""
        self.materialize()
        parent = None if self._view_base is None else self._view_base.parent
        if parent is not None and not parent.rows.requires_grad:
            parent.become_plain()
            return
        family = [self]
        for each in family:
            family += [view for view in (ref() for ref in each._views) if view is not None]
            each._views = []
        if parent is not None:
            parent._views = [ref for ref in parent._views if ref() is not self]
        for each in family:
            assert each._data is not None
            torch.utils.swap_tensors(each, each._data.detach())  # type: ignore[no-untyped-call]

    def is_alone(self) -> bool:
        """Whether its rows may be written into: no other tensor that is in use may share their memory."""
        return self._view_base is None and not self.allows_reordered_sum and all(ref() is None for ref in self._views)

    @classmethod
    @_disable_dynamo
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            result = rule(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return on_whole(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """For what comes from C++: scripted functions, extensions. (What comes from Python was seen before.)"""
        if func in _ALIASES and args[0].is_rows:
            return defer_from(args[0], args[0].rows.detach(), args[0].batch_dim, lambda whole: whole.detach())
        if any(
            each.is_materialized and each.whole().requires_grad and not each.rows.requires_grad
            for each in _in((args, kwargs))
        ):
            raise RuntimeError(
                "compiled code can't take gradients by a batch that dp2ddp_runtime loaded: give it batch.clone()"
            )
        return on_whole(func, args, kwargs or {})


_numbers = itertools.count()
_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def defer(
    rows: torch.Tensor,
    sizes: Sequence[int],
    dim: int = 0,
    allows_reordered_sum: bool = False,
    tokens: Sequence[torch.Tensor] = (),
) -> Deferred:
    """A whole batch, of which this rank has `rows`, and each its size along `dim`; the rest as in `Deferred`."""
    return _make(rows, tuple(sizes), dim, allows_reordered_sum, tuple(tokens), None)


def defer_from(
    parent: Deferred, rows: torch.Tensor, dim: int, view_fn: Callable[[torch.Tensor], torch.Tensor], sizes: Any = None
) -> Deferred:
    """What `view_fn` makes of `parent`, as a deferred tensor; `rows` are what it makes of its rows."""
    base, sizes = ViewBase(parent, view_fn), tuple(sizes or parent.sizes)
    new = _make(rows, sizes, dim, parent.allows_reordered_sum, parent.tokens, base)
    parent._views.append(weakref.ref(new))
    return new


def _make(
    rows: torch.Tensor,
    sizes: tuple[int, ...],
    dim: int,
    allows_reordered_sum: bool,
    tokens: tuple[torch.Tensor, ...],
    view_base: ViewBase | None,
) -> Deferred:
    new = Deferred(rows.detach() if rows.requires_grad else rows, sizes, dim)
    if rows.requires_grad and torch.is_grad_enabled():
        new = attach(rows, new, sizes, dim, tokens)  # type: ignore[assignment]
    new.rows, new.sizes, new.batch_dim, new.allows_reordered_sum = rows, sizes, dim, allows_reordered_sum
    new.tokens = tokens if rows.requires_grad else ()
    new.number = next(_numbers)
    new._view_base, new._views, new._data, new._graph = view_base, [], None, None
    new._node = _grad_fn(new)
    return new


def _grad_fn(tensor: Deferred) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.grad_fn


def is_small(tensor: Deferred) -> bool:
    """Whether it travels with the next exchange, rather than in one of its own."""
    return _nbytes(tensor) <= SMALL and tensor.rows.device.type == "cpu"


def _nbytes(tensor: Deferred) -> int:
    rows = tensor.rows
    per_row = math.prod(rows.shape[: tensor.batch_dim] + rows.shape[tensor.batch_dim + 1 :]) * rows.element_size()
    return per_row * sum(tensor.sizes)


def materialize(value: Any) -> Any:
    """The same nesting, with whole batches in place of deferred ones. A collective if there are any."""
    return _whole(value) if _in(value) else value


def _whole(value: Any) -> Any:
    return nesting.map_tensors(lambda each: each.whole() if isinstance(each, Deferred) else each, value)


def on_whole(func: Any, args: Any, kwargs: Any) -> Any:
    """`func` of whole batches. What it writes into is written into the script's own tensors."""
    found = _in((args, kwargs))
    for each in found:
        each.materialize()
    args, kwargs = _whole((args, kwargs))
    result = func(*args, **kwargs)
    return (
        next((each for each in found if result is each._data or result is each._graph), result)
        if isinstance(result, torch.Tensor)
        else result
    )


def _in(value: Any) -> list[Deferred]:
    return [each for each in nesting.tensors(value) if isinstance(each, Deferred)]


class _Unwrap(torch.autograd.Function):
    """The whole batch, with the graph of the deferred tensor itself."""

    @staticmethod
    def forward(ctx: Any, tensor: Deferred) -> torch.Tensor:
        return tensor.whole().view_as(tensor.whole())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


#: The classes and their methods that are given something for another thread or process.
_DOORS: tuple[tuple[Any, str], ...] = (
    (concurrent.futures.ThreadPoolExecutor, "submit"),
    (concurrent.futures.ProcessPoolExecutor, "submit"),
    (queue.Queue, "put"),
    (threading.Thread, "__init__"),
    (multiprocessing.queues.Queue, "put"),
    (multiprocessing.queues.SimpleQueue, "put"),
    (multiprocessing.process.BaseProcess, "__init__"),
)
#: What is given the inputs of whatever is traced: by `torch.jit.trace` and all that is made of it (`torch.onnx.export`,
#: tensorboard's graphs), by `make_fx`, by `torch.export`.
_TRACERS: list[tuple[Any, str]] = [(proxy_tensor, "wrap_key"), (FakeTensorMode, "from_tensor")]
for _owner in (torch._C, torch._C.ScriptModule):
    _TRACERS += [(_owner, _name) for _name in dir(_owner) if _name.startswith("_create_") and "_trac" in _name]


def watch_handover() -> None:
    """From now on what the main thread hands to threads and other processes comes there whole.

    These can't ask the other ranks for it, each at another time. What is traced would be a constant in its graph.
    """
    for owner, name in (*_DOORS, *_TRACERS):
        real = getattr(owner, name)
        if not hasattr(real, "of_dp2ddp"):
            setattr(owner, name, (_gathering if (owner, name) in _DOORS else _tracing)(real))
            getattr(owner, name).of_dp2ddp = True


def _gathering(real: Any) -> Any:
    @functools.wraps(real)
    def hand_over(*args: Any, **kwargs: Any) -> Any:
        # Another thread's (one that reads batches ahead) is in its own turn, and what it hands on stays deferred.
        if threading.get_ident() == threading.main_thread().ident:  # (`current_thread` may make a `Thread`)
            for tensor in _in([args[1:], kwargs]):
                tensor.materialize()
        return real(*args, **kwargs)

    return hand_over


def _tracing(real: Any) -> Any:
    @functools.wraps(real)
    def trace(*args: Any, **kwargs: Any) -> Any:
        if _in((args, kwargs)):
            with _disable_current_modes():
                args, kwargs = _whole((args, kwargs))
        return real(*args, **kwargs)

    return trace
