"""What a data set keeps from one sample to the next, found in its attributes.

Ranks that load their own rows each go on with their own copy of a data set. That is the original's as long as the
data set is the same after a sample as before. A generator, a counter or an iterator that moves says that it isn't. What
grows (a dict of images, a handle that is opened when it is first needed) is a cache: it changes nothing that is
returned. So only what was there before is compared: generators, numbers, up to `_FEW` numbers in an array, how far
iterators are, and whether lists and sets became shorter; not what is in larger arrays, nor what files hold. A flag that
changes at the first sample ("opened") is one of those, and counts only if it changes again.

All objects of the process would be found by the garbage collector, too, without telling where they are; but that took
0.4 s for each worker in each epoch, and knows nothing of `torch.Generator`.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import itertools
import operator
import random
import sys
import types
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch.utils.data import Dataset

from ..base.location import is_of_script
from ..ranks import rng

np = rng.np

_MOST, _ITEMS, _FEW = 2000, 64, 8  # objects that are looked at, items of a container, numbers of an array
_NUMBERS = (int, float, complex) if np is None else (int, float, complex, np.number, np.bool_)
_ARRAYS = () if np is None else (np.ndarray,)
_CHECKED = 10  # batches; after these every one whose number is a power of two: a change that goes on shows there, too
_LENGTHS = (list, deque, set)
_LEFT_OUT = (str, bytes, bytearray, types.ModuleType, torch.dtype, torch.device, range, *_ARRAYS, torch.Tensor)

#: Of what is found: a `flag`, a `length`, or another `value`; and its checksum, or how long it is.
Note = tuple[str, int]
#: In place of an attribute's name: the numbers of `random`, NumPy and torch, which are the same on all ranks.
GLOBAL = "the global generators"
#: As well: something is filled as samples are loaded, which the script may look at where its process loads them.
GROWS = "what the data set collects"
#: The names of what a data set has changed, and what that was before.
Changes = dict[str, int]


class Watch:
    """Looks whether a data set (`root`) changes."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._batches = 0
        self._before = state(root)
        self.grew = False
        self._random = rng.capture()

    @property
    def drew(self) -> bool:
        """Whether the global generators have moved since `begin`."""
        return not rng.alike(self._random, rng.capture())

    @property
    def _is_due(self) -> bool:
        return self._batches < _CHECKED or self._batches & (self._batches - 1) == 0

    def begin(self, shared: bool = True) -> None:
        """What has changed until now doesn't count. With `shared`, samples draw from the shared stream (`drew`)."""
        if shared:
            self._random = rng.capture()
        if self._is_due:
            self._before = state(self._root)

    def changes(self) -> Changes:
        """What has changed since `begin`, or since it was looked at the last time. Asked once for each batch.

        Whether something `grew` is known from then on.
        """
        is_due, is_first = self._is_due, not self._batches
        self._batches += 1
        if not is_due:
            return {}
        before, self._before = self._before, state(self._root)
        lengths = ((name, note) for name, note in self._before.items() if note[0] == "length")
        self.grew = any(before.get(name) != note for name, note in lengths)
        self.grew |= not self._before.keys() <= before.keys()
        ignored = ("flag",) if is_first else ()
        return {
            name: old
            for name, (kind, old) in before.items()
            if kind not in ignored and _has_changed(kind, old, self._before.get(name))
        }


def _has_changed(kind: str, old: int, new: Note | None) -> bool:
    if new is None or new[0] != kind:
        return False
    return new[1] < old if kind == "length" else new[1] != old


class Fetched(NamedTuple):
    """What a worker sends."""

    batch: Any
    changes: Changes


class Watched:
    """The script's `collate_fn`, which tells with a batch what the worker's copy of the data set has changed."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Fetched:
        assert _worker_s is not None
        return Fetched(self._collate(samples), _worker_s.changes())


_worker_s: Watch | None = None


def watch(root: Any) -> None:
    """In a worker, before it loads samples: watch its copy of the data set."""
    global _worker_s
    _worker_s = Watch(root)


def not_apart(changes: Sequence[Changes]) -> str:
    """Which of the ranks' `changes` the ranks did not begin with in a state of their own each; empty if there is none.

    Generators that are seeded otherwise on every rank draw for each row what the original could have drawn, as
    workers' do. From the same state, ranks draw the same for several rows.
    """
    for name in dict.fromkeys(itertools.chain(*changes)):
        before = [each[name] for each in changes if name in each]
        if len(set(before)) < len(changes):
            return name
    return ""


def state(root: Any) -> dict[str, Note]:
    """What `root` keeps, by its name."""
    notes = ((name, _note(value)) for name, value in _reached(root))
    return {name: note for name, note in notes if note is not None}


def generators_in(root: Any) -> list[Any]:
    """The random generators that can be reached from `root`."""
    return [value for _, value in _reached(root) if _is_generator(value)]


def _is_generator(value: Any) -> bool:
    """Whether it is one that has a state, on the CPU."""
    on_device = isinstance(value, torch.Generator) and value.device.type != "cpu"
    return isinstance(value, rng.GENERATORS) and not on_device and not isinstance(value, random.SystemRandom)


def _note(value: Any) -> Note | None:
    if isinstance(value, bool):
        return "flag", int(value)
    if isinstance(value, _LENGTHS):
        return "length", len(value)
    known = _known(value)
    return None if known is None else ("value", zlib.crc32(known if isinstance(known, bytes) else repr(known).encode()))


def _known(value: Any) -> Any:
    """What tells whether a value is the same as before; None if nothing does."""
    if isinstance(value, (*_NUMBERS, itertools.count)):
        return value
    if _is_generator(value):
        return _plain(rng.state_of(value))
    if isinstance(value, types.GeneratorType):
        return value.gi_frame and value.gi_frame.f_lasti  # whether it has begun; its variables tell more
    if isinstance(value, _ARRAYS):
        return value.tolist() if value.size <= _FEW and not value.dtype.hasobject else None
    if type(value) is torch.Tensor:
        return value.tolist() if value.device.type == "cpu" and value.numel() <= _FEW and not value.is_sparse else None
    return operator.length_hint(value) if hasattr(type(value), "__next__") else None


def _plain(value: Any) -> Any:
    """Without tensors and arrays, whose text leaves numbers out."""
    if isinstance(value, torch.Tensor):
        return ctypes.string_at(value.data_ptr(), value.nbytes)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tobytes() if isinstance(value, _ARRAYS) else value


def _reached(root: Any) -> Iterator[tuple[str, Any]]:
    """What can be reached from `root`, the nearest first, with how it is reached."""
    seen = {id(one): one for one in _global_generators()}
    todo = deque([("", root)])
    while todo and len(seen) < _MOST:
        name, value = todo.popleft()
        if id(value) in seen:
            continue
        if not isinstance(value, _NUMBERS):
            seen[id(value)] = value  # kept, so that no other object gets its id
        yield name.lstrip(".:"), value
        if not _is_handle(value) or value is root:
            todo.extend((name + part, item) for part, item in _parts(value))


def _global_generators() -> list[Any]:
    """Their numbers are each rank's own, or known to be drawn (`rng`)."""
    ours = [torch.default_generator, vars(random)["_inst"]]
    return ours if np is None else [*ours, np.random.mtrand._rand]


def _is_handle(value: Any) -> bool:
    """A file, or a reader of files: where it has got to doesn't matter."""
    return hasattr(type(value), "close") and not isinstance(value, (Dataset, types.GeneratorType))


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """What an object leads to, with the name's next part."""
    if value is None or isinstance(value, (*_LEFT_OUT, *_NUMBERS)):
        return []
    if isinstance(value, dict):
        return [(f"[{key!r}]", value[key]) for key in itertools.islice(value, _ITEMS) if isinstance(key, (str, int))]
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{index}]", item) for index, item in enumerate(itertools.islice(value, _ITEMS))]
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        return [(f".{name}", item) for name, item in vars(value).items() if _is_scripts(value) and _counts(name, item)]
    parts = {}
    if isinstance(value, types.GeneratorType):
        parts = {**inspect.getgeneratorlocals(value), "gi_yieldfrom": value.gi_yieldfrom}
    elif isinstance(value, functools.partial):
        parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        parts = {"__self__": value.__self__, "__func__": getattr(value, "__func__", None)}
    elif hasattr(type(value), "__next__") and not hasattr(value, "__dict__"):
        parts = {f"({index})": item for index, item in enumerate(gc.get_referents(value))}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names = [slots] if isinstance(slots, str) else slots
        parts.update((name, getattr(value, name)) for name in names if name != "__dict__" and hasattr(value, name))
    parts.update(getattr(value, "__dict__", {}))
    own = [(f".{name}", item) for name, item in parts.items()]
    return [*own, *((f":{kind.__name__}", kind) for kind in type(value).__mro__ if _is_scripts(kind))]


def _counts(name: str, item: Any) -> bool:
    """Whether something of a class is more than what Python notes there."""
    return isinstance(item, types.FunctionType) or not name.startswith("__")


def _of_function(function: types.FunctionType) -> Iterable[tuple[str, Any]]:
    """What one of the script's own functions may look at: its closure, its defaults, and globals that it names."""
    if not _is_scripts(function):
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    names = {name: item for name, cell in cells for item in gc.get_referents(cell)}
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        names.update((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    return [*((f":{name}", item) for name, item in names.items()), (":defaults", function.__defaults__)]


def _is_scripts(value: Any) -> bool:
    """Whether a class or function is the script's own, rather than Python's, a package's or this runtime's."""
    name = getattr(value, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" if file is None else is_of_script(file)
