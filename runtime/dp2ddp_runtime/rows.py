"""Batches that are whole to the script, while each rank holds its rows of them.

What torch does to each row by itself is done to a rank's own rows: a list of names, and a trial on tensors without
memory. Whoever looks at anything else gets the whole batch, gathered once; from then on it is an ordinary tensor.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch._compile import _disable_dynamo  # the public one takes a second to import where nothing is compiled

from . import place
from .gradients import Layout
from .nesting import nested, tensors
from .world import SMALL, agree, exchange, gather_rows, group_of, waiting, world

T = torch.Tensor
_FIELDS = ("_rows", "_sizes", "_whole", "_views", "_source", "_number", "sent", "_anchors", "_used")
_numbers = itertools.count()
_unsent: weakref.WeakValueDictionary[str, Rows] = weakref.WeakValueDictionary()


class Rows(T):
    """Shape: the whole batch's. Holds this rank's rows of it, until somebody has looked.

    Args:
        rows: this rank's; on a rank that has none, rank 0's.
        sizes: how many rows each rank has.
        source: what it was made from, where it may share its memory, and how.
        sent: its rows on the CPU, where they are worth no collective of their own. They travel with the next message.
    """

    _rows: T
    _sizes: tuple[int, ...]
    _whole: T | None  # set only where the batch can't become an ordinary tensor (torch before 2.3; C++ holds it)
    _views: list[weakref.ref[Rows]]
    _source: tuple[Rows, Callable[[T], T]] | None
    _number: str  # of a batch that travels with messages: alike on all ranks
    sent: T | None

    @staticmethod
    def __new__(cls, rows: T, sizes: Sequence[int], source: Any = None, sent: Any = None) -> Any:
        make: Any = T._make_wrapper_subclass
        new = make(cls, [sum(sizes), *rows.shape[1:]], dtype=rows.dtype, device=rows.device)
        new._rows, new._sizes, new._whole, new._views, new._source = rows, tuple(sizes), None, [], source
        if source is not None:
            source[0]._views.append(weakref.ref(new))
        elif sent is None and _is_small(rows, sizes):
            # (Threads that read ahead make theirs in another order on each rank.)
            sent = rows if threading.current_thread() is threading.main_thread() else None
        new.sent, new._number = sent, ""
        if sent is not None:
            new._number = f"{next(_numbers)} {[*new._rows.shape[1:]]} {rows.dtype}"
            _unsent[new._number] = new
        return new

    __hash__ = T.__hash__

    @classmethod
    @_disable_dynamo
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _META and args[0]._whole is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            raise RuntimeError(
                f"{place.line()} traces with a loader's batch, which would be a constant: give it `batch.clone()`"
            )
        found = tensors((args, kwargs), Rows)
        if all(each._whole is None and each._sizes == found[0]._sizes for each in found):
            done = cls._on_shards(func, args, kwargs, found)
            if done is not NotImplemented:
                return done
        return on_whole(func, args, kwargs)

    @classmethod
    def _on_shards(cls, func: Any, args: Any, kwargs: Any, found: list[Rows]) -> Any:
        """What `func` gives, from the rows of the batches among its arguments; NotImplemented where that can't be."""
        rule = RULES.get(name_of(func))
        if rule is None or any(_is_leaf(each) for each in found):
            return NotImplemented
        return rule(func, args, kwargs, found)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """For what comes from C++: scripted functions, extensions, tracing. What comes from Python was seen before."""
        if func in _ALIASES and type(args[0]) is Rows and args[0]._whole is None:
            return args[0].made(args[0]._rows.detach(), args[0]._sizes, T.detach)
        data = {id(each): each._data() for each in tensors((args, kwargs), Rows)}
        args, kwargs = nested(lambda each: data[id(each)], (args, kwargs or {}), Rows)
        return func(*args, **kwargs)

    def made(self, rows: T, sizes: Sequence[int], view: Callable[[T], T] | None = None, sent: Any = None) -> Any:
        """What a function has made of these rows; `view`: the same of the whole, where it may share its memory."""
        return Rows(rows, sizes, None if view is None else (self, view), sent)

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def _data(self) -> T:
        """The whole, without a graph: for C++, which holds this tensor, so that it can't become another one now."""
        if self._whole is None:
            self._gather(ordinary=False)
        assert self._whole is not None
        if self._whole.requires_grad and not has_graph(self):
            raise RuntimeError("compiled code can't take gradients by a loader's batch: give it `batch.clone()`")
        return self._whole.detach()

    def _gather(self, ordinary: bool) -> None:
        root = self
        while root._source is not None:
            root = root._source[0]
        sizes, what = root._sizes, f"a look at a batch of shape {[sum(root._sizes), *root._rows.shape[1:]]}"
        if world.alone and len(sizes) > 1:
            raise RuntimeError(f"{what} in another process, where the other ranks aren't: hand over `batch.clone()`")
        value = None
        if root.sent is not None:
            agree(what, root._number)
            batches = list({each._number: each for each in (*pending(), root)}.values())
            told = exchange(what, [each._number for each in batches], [each.sent for each in batches])  # type: ignore[misc]
            value = land(batches, [(each.value, each.tensors) for each in told], root)
        else:
            exchange(what)
        root._take(gather_rows(root._rows, sizes) if value is None else value, ordinary)

    def _take(self, value: T, ordinary: bool = True) -> None:
        """`value` is the whole: be that, and all that shares its memory, too."""
        views, self._views = [each() for each in self._views], []
        plain = self._become(value) if ordinary else None
        if plain is None:
            self._whole = plain = value
        for view in views:
            if isinstance(view, Rows):
                with torch.enable_grad():
                    made = view._source[1](plain.detach() if plain.requires_grad > view._rows.requires_grad else plain)  # type: ignore[index]
                    view._take(made.view_as(made) if made is plain else made, ordinary)

    def _become(self, value: T) -> T | None:
        """Be an ordinary tensor from now on, for C++ as well; None if that can't be."""
        swap: Any = getattr(torch.utils, "swap_tensors", None)
        if swap is None:
            return None
        _unsent.pop(self._number, None)
        state = vars(self).copy()
        vars(self).clear()
        vars(self).update({name: each for name, each in state.items() if name not in _FIELDS})
        try:
            with torch._C.DisableTorchFunctionSubclass():
                if self.requires_grad and not value.requires_grad:  # a leaf: `Variable(x, requires_grad=True)`
                    value = value.detach().requires_grad_()
                swap(self, value)
        except RuntimeError:  # C++ holds it, such as the graph of a function that has saved it: `_whole` stands in
            vars(self).update(state)
            return None
        vars(self).update(vars(value))
        return self


def _is_small(rows: T, sizes: Sequence[int]) -> bool:
    """Whether a whole batch of such rows is worth no message of its own: it travels with others."""
    return rows.device.type == "cpu" and sum(sizes) * rows[:1].numel() * rows.element_size() <= SMALL


def whole(value: Any) -> Any:
    """The whole batch, gathered at the first look: a collective. Any other value is itself."""
    if not isinstance(value, Rows):
        return value
    if value._whole is None:
        value._gather(ordinary=True)
    elif value._source is None:
        value._take(value._whole)
    return value._whole if isinstance(value, Rows) else value


def materialize(value: Any) -> Any:
    """The same nesting of tuples, lists and dicts, with whole batches in it. A collective if there are any."""
    return nested(whole, value, Rows)


def on_whole(func: Any, args: Any, kwargs: Any) -> Any:
    """`func` of whole batches. What it writes into them is written into the script's own tensors. A collective."""
    for each in tensors((args, kwargs), Rows):
        whole(each)
    left = tensors((args, kwargs), Rows)
    if any(map(_is_leaf, left)):  # torch before 2.3: the gradient would be that of another tensor
        raise RuntimeError(
            f"{place.line()} wants the gradient of a loader's batch: give it `batch.clone().requires_grad_()`"
        )
    if left:
        args, kwargs = nested(lambda each: each._whole, (args, kwargs), Rows)
    result = func(*args, **kwargs)
    for each in left:
        if not (each._whole.is_leaf or has_graph(each)):  # C++, and functions of the script's own, would see no graph
            raise RuntimeError(
                f"{place.line()} writes what has a gradient into a loader's batch: `batch = batch.clone()`"
            )
    return next((each for each in left if result is each._whole), result)


def is_sharded(value: Any) -> bool:
    """Whether it is a batch of which the rows may be used as they are."""
    return isinstance(value, Rows) and value._whole is None and not _is_leaf(value)


def pending() -> list[Rows]:
    """The small batches that nobody has looked at. Their `sent` may travel with a message, with their `_number`."""
    found = [each for each in _unsent.values() if isinstance(each, Rows) and each._whole is None]
    _unsent.clear()
    return found


def land(batches: Sequence[Rows], told: Sequence[tuple[list[str], list[Any]]], but: Any = None) -> T | None:
    """Let the batches of which all ranks have sent their rows be whole. No collective.

    Args:
        batches: this rank's, as `pending` gave them.
        told: each rank's numbers, and its tensors.
        but: the batch whose whole is returned rather than settled.
    """
    found = None
    sent = [dict(zip(*each)) for each in told]
    for batch in batches:
        parts: list[Any] = [each.get(batch._number) for each in sent]
        if all(isinstance(part, T) for part in parts):
            value = torch.cat([part[:size] for part, size in zip(parts, batch._sizes)])
            if batch is but:
                found = _arrived(batch, value)
            elif isinstance(batch, Rows) and batch._whole is None:
                batch._take(_arrived(batch, value))
    return found


@torch.inference_mode(False)
@torch.no_grad()
def _arrived(batch: Rows, value: T) -> T:
    value = value.to(batch._rows.device, batch._rows.dtype)
    return value.clone() if value.is_inference() else value


def has_graph(batch: T) -> bool:
    """`requires_grad` of the tensor itself: no look."""
    with torch._C.DisableTorchFunctionSubclass():
        return batch.requires_grad


def _is_leaf(batch: Rows) -> bool:
    """Whether C++ has made it one that gets a gradient."""
    return has_graph(batch) and not batch._rows.requires_grad


def name_of(func: Any) -> str:
    return _PROPERTIES.get(func) or str(getattr(func, "__name__", ""))


def cut(tensor: T, sizes: Sequence[int]) -> T:
    """This rank's rows of a tensor that all ranks have; those of the first that has any on a rank without."""
    return Layout(tuple(sizes), 0).take(tensor)


# ---- what keeps rows apart -------------------------------------------------------------------------------------------


def _moved(func: Any, args: Any, kwargs: Any, found: list[Rows]) -> Any:
    """Moves and casts; also what is asked of the rows. Another tensor says only where to, or of which type."""
    rows = func(*nested(own_rows, args, Rows), **nested(own_rows, kwargs, Rows))
    batch = args[0]
    if not isinstance(rows, T) or not isinstance(batch, Rows):
        return rows
    if rows is batch._rows:
        if func is not T.contiguous or _is_dense(batch):
            return batch
        rows = rows.clone(memory_format=torch.contiguous_format)
    if (rows.device, rows.dtype) == (batch._rows.device, batch._rows.dtype):
        rest = nested(own_rows, (args[1:], kwargs), Rows)
        return batch.made(rows, batch._sizes, lambda one: func(one, *rest[0], **rest[1]))
    sent = batch.sent if batch._rows.device.type == "cpu" != rows.device.type else None
    return batch.made(rows, batch._sizes, sent=sent)


def own_rows(batch: Rows) -> T:
    return batch._rows


def _is_dense(batch: Rows) -> bool:
    """Whether rows follow each other without a gap; a single one says so by its stride: alike on all ranks."""
    return sum(batch._sizes) == 1 or batch._rows.stride(0) == math.prod(batch._rows.shape[1:])


def _like(func: Any, args: Any, kwargs: Any, found: list[Rows]) -> Any:
    """A new tensor of the same kind, for which the contents don't matter: whole."""
    batch, *rest = args
    if tensors((rest, kwargs)) or not batch._rows.is_contiguous() or not _is_dense(batch):
        return NotImplemented
    return func(torch.empty(shape_of(batch), dtype=batch._rows.dtype, device=batch._rows.device), *rest, **kwargs)


def shape_of(batch: Rows) -> list[int]:
    return [sum(batch._sizes), *batch._rows.shape[1:]]


def _reshaped(func: Any, args: Any, kwargs: Any, found: list[Rows]) -> Any:
    """`x.view(x.size(0), -1)`. A row may become several, or several one, where no rank has a part of one."""
    batch, *rest = args
    total = sum(batch._sizes)
    if not isinstance(batch, Rows) or not total or any(isinstance(each, torch.dtype) for each in rest):
        return NotImplemented
    # The sizes that come out are the same for a tensor without memory.
    shape = func(torch.empty(shape_of(batch), device="meta"), *rest, **kwargs).shape
    if not shape or any(size * shape[0] % total for size in (*batch._sizes, len(batch._rows))):
        return NotImplemented
    rows = batch._rows.reshape([len(batch._rows) * shape[0] // total, *shape[1:]])
    return batch.made(rows, [size * shape[0] // total for size in batch._sizes], lambda one: one.reshape(shape))


def _item(func: Any, args: Any, kwargs: Any, found: list[Rows]) -> Any:
    batch, index = args
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(batch, Rows):
        return NotImplemented
    if all(each is None or each is Ellipsis or type(each) is int or _is_plain_slice(each) for each in parts):
        return _viewed(func, args, kwargs, found)
    return _picked(batch, parts[0], parts[1:])


def _is_plain_slice(value: Any) -> bool:
    return type(value) is slice and {type(value.start), type(value.stop), type(value.step)} <= {int, type(None)}


def _picked(batch: Any, index: Any, columns: Any) -> Any:
    """As many rows as there are, by their numbers (mixup's `x[permutation]`): each rank gets those that it needs."""
    total = sum(batch._sizes) if isinstance(batch, Rows) else 0
    if not total or batch.sent is not None or batch._rows.requires_grad or not all(map(_is_plain_slice, columns)):
        return NotImplemented
    if not isinstance(index, T) or index.dtype != torch.int64 or index.shape != (total,):
        return NotImplemented
    numbers = whole(index).tolist()
    if not all(-total <= number < total for number in numbers):
        return NotImplemented
    agree("the order of a batch's rows", zlib.crc32(repr(numbers).encode()))
    exchange("rows of a batch in another order")
    every_row = (slice(None), *columns)
    rows = batch._rows[every_row]
    return batch.made(_pick(rows, batch._sizes, [number % total for number in numbers]), batch._sizes)


@torch.inference_mode(False)
@torch.no_grad()
def _pick(rows: T, sizes: Sequence[int], numbers: Sequence[int]) -> T:
    """This rank's rows of `whole[numbers]`; rank 0's on a rank without any. A collective."""
    starts = list(itertools.accumulate(sizes, initial=0))
    owner = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    wanted = [numbers[start : start + size] if size else numbers[: sizes[0]] for start, size in zip(starts, sizes)]
    me = world.rank
    mine = [[number - starts[me] for number in each if owner[number] == me] for each in wanted]
    theirs = sorted(range(len(wanted[me])), key=lambda number: owner[wanted[me][number]])  # stable: in each one's order
    counts = [sum(owner[number] == rank for number in wanted[me]) for rank in range(len(sizes))]
    sent = rows.detach()[list(itertools.chain(*mine))].contiguous()
    came = sent.new_empty([len(theirs), *rows.shape[1:]])
    width = came[:1].numel() * came.element_size()
    splits = [count * width for count in counts], [len(each) * width for each in mine]
    with waiting("rows in another order"):
        group_of(rows.device).alltoall_base(_bytes(came), _bytes(sent), *splits).wait()
    picked = torch.empty_like(came)
    picked[theirs] = came
    return picked


def _bytes(tensor: T) -> T:
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)


def _viewed(func: Any, args: Any, kwargs: Any, found: list[Rows]) -> Any:
    """Shapes that leave a batch's dimension alone, of one batch."""
    if len(tensors((args, kwargs))) > 1:
        return NotImplemented
    return tried(func, args, kwargs, found, of_one=True)


def tried(func: Any, args: Any, kwargs: Any, found: list[Rows], of_one: bool = False) -> Any:
    """Two trials without memory, the second one with a row more, tell whether there is one row for each row."""
    if any(kwargs.get(name, default) != default for name, default in _UNUSUAL):
        return NotImplemented
    batch = found[0]
    key = func, torch.is_grad_enabled(), repr(nested(_kind, (args, kwargs)))
    if key not in _shapes:
        if len(_shapes) > 1000:
            _shapes.clear()
        _shapes[key] = _trial(func, args, kwargs, batch)
    shapes = _shapes[key]
    if shapes is None:
        return NotImplemented
    sizes = batch._sizes

    def own(each: T) -> T:
        if isinstance(each, Rows):
            return each._rows
        return cut(each, sizes) if _has_rows(each, batch) else each

    made = func(*nested(own, args), **nested(own, kwargs))
    several = isinstance(made, (tuple, list))
    results = []
    for number, rows in enumerate(made if several else [made]):
        size = [len(batch._rows), *shapes[number][1:]]
        if [*rows.shape] != size:  # a single row's dimension may have been squeezed away
            rows = rows.reshape(size)
        view = None
        if of_one:
            view = lambda one, number=number: _nth(func(one, *args[1:], **kwargs), number)  # noqa: E731
        results.append(max(found, key=lambda each: type(each) is not Rows).made(rows, sizes, view))
    return type(made)(results) if several else results[0]


def _nth(made: Any, number: int) -> Any:
    return made if isinstance(made, T) else made[number]


_UNUSUAL = (("out", None), ("inplace", False), ("alpha", 1))
#: What comes out for the whole batch; None if it hasn't just one row for each. A trial takes 50 us, steps are alike.
_shapes: dict[Any, list[list[int]] | None] = {}


def _kind(each: T) -> Any:
    return type(each), [*each.shape], each.dtype, each.requires_grad


def _has_rows(each: T, batch: Rows) -> bool:
    return each.dim() == batch._rows.dim() and len(each) == sum(batch._sizes)


def _trial(func: Any, args: Any, kwargs: Any, batch: Rows) -> list[list[int]] | None:
    for each in tensors((args, kwargs)):
        if each.dim() > batch._rows.dim() or (isinstance(each, Rows) and each.dim() < batch._rows.dim()):
            return None
        if not isinstance(each, Rows):
            if each.requires_grad and torch.is_grad_enabled():
                return None  # its gradient is to be the whole batch's
            if each.dim() == batch._rows.dim() and len(each) != 1 and not _has_rows(each, batch):
                return None
    shapes = []
    for more in (0, 1):

        def probe(each: T, more: int = more) -> T:
            size = [len(each) + more, *each.shape[1:]] if _has_rows(each, batch) else each.shape
            return torch.empty(size, dtype=each.dtype, device="meta")

        try:
            with torch.no_grad():
                made = func(*nested(probe, args), **nested(probe, kwargs))
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            return None  # the script's error, too: it is raised where the whole batch is asked for
        shapes.append([[*each.shape] for each in (made if isinstance(made, (tuple, list)) else [made])])
    total = sum(batch._sizes)
    longer = [[total + 1, *shape[1:]] for shape in shapes[0] if shape[:1] == [total]]
    return shapes[0] if longer == shapes[1] else None


# ---- the list --------------------------------------------------------------------------------------------------------
# Correctly rounded by IEEE 754, or no arithmetic at all: bit for bit the rows of what comes of the whole batch. Random
# functions aren't in it: they draw for the whole batch.


def _getters(names: str) -> set[Any]:
    return {getattr(T, name).__get__ for name in names.split()}


_META = {
    *(getattr(T, name) for name in "size dim __len__ numel nelement ndimension element_size get_device".split()),
    *(getattr(T, name) for name in "is_floating_point is_complex is_signed".split()),
    *_getters("shape dtype device ndim layout requires_grad grad grad_fn is_leaf is_cuda is_cpu is_sparse is_meta"),
    *_getters("is_quantized is_mkldnn"),
}
_PROPERTIES: dict[Any, str] = {T.data.__get__: "data"}  # type: ignore[attr-defined]
_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)

MOVES = """
    to cuda cpu float double half bfloat16 long int short bool type type_as contiguous pin_memory is_pinned detach data
    record_stream
""".split()
VIEWS = "unsqueeze squeeze permute transpose movedim expand select narrow unbind chunk split".split()
RESHAPES = "view reshape flatten unflatten".split()
COMPARISONS = "eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__".split()
EACH = """
    add sub rsub mul div true_divide neg abs sqrt clamp clip where masked_fill logical_and logical_or logical_not
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __rdiv__ __neg__ __and__ __or__
    __invert__ cat stack repeat pad interpolate
""".split()
LIKE = """
    zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty
    new_tensor new
""".split()

Rule = Callable[[Any, Any, Any, "list[Rows]"], Any]
#: By the name of a function of torch's: func, args, kwargs, the batches among these -> its result, or NotImplemented.
RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVES, _moved),
    **dict.fromkeys(VIEWS, _viewed),
    **dict.fromkeys(RESHAPES, _reshaped),
    **dict.fromkeys([*COMPARISONS, *EACH], tried),
    **dict.fromkeys(LIKE, _like),
    "__getitem__": _item,
}
