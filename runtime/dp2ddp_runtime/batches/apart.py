"""Batches of a script's `collate_fn` in which rows stay apart: so the script says (`shard_loader(loader, rows=True)`).

Each rank collates its own rows alone. That is right where to collate samples makes the same as to collate some, then
the others, and to put the one behind the other. Nobody can read that from a function; so it is tried, on copies of the
samples that are here, in the first batches and then in those whose number is a power of two. What is found there of
each part of a batch (which of its dimensions has a row for each sample) has to be so in every batch, on every rank.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from ..base import codec, nesting, voice
from ..ranks import rng
from ..ranks.collectives import bytes_of, checksum, plain
from . import kept

_CHECKED = 3  # batches; after these every one whose number is a power of two


class Column(NamedTuple):
    """A tensor with a row for each sample along `dim`."""

    name: str
    rows: torch.Tensor
    dim: int


class Items(NamedTuple):
    """A list, tuple or array with an item for each sample, such as boxes. They travel with the batch."""

    name: str
    items: Any


class Constant(NamedTuple):
    """What is the same for any samples."""

    name: str
    value: Any


Marked = (Column, Items, Constant)


def described(mark: Any) -> str:
    """Of a mark: what has to be the same on all ranks."""
    if isinstance(mark, Constant):
        return f"{mark.name} is {_text(mark.value)}"
    if isinstance(mark, Items):
        return f"{mark.name} is a {type(mark.items).__name__} of items"
    shape = [*mark.rows.shape[: mark.dim], "rows", *mark.rows.shape[mark.dim + 1 :]]
    return f"{mark.name} is a {mark.rows.dtype} tensor of {' x '.join(map(str, shape))}"


class _Kind(NamedTuple):
    """What a part of a batch is: a column, items, a constant, or a container with these keys."""

    what: str
    about: Any = None


class Collate:
    """The script's `collate_fn`, which says what in a batch has rows, by `Column`, `Items` and `Constant`."""

    def __init__(self, collate: Callable[[Any], Any], is_heard: bool) -> None:
        self._is_heard = is_heard
        self.original = collate
        self._name = getattr(collate, "__qualname__", type(collate).__name__)
        self._kinds: dict[str, _Kind] = {}
        self._batches = 0
        self._last: list[Any] = []  # the latest sample that was checked
        self._watch: kept.Watch | None = None  # of what it keeps from one batch to the next

    def __call__(self, samples: Any) -> Any:
        """The batch of this rank's samples. ValueError if rows don't stay apart, which says what doesn't."""
        number = self._batches
        if number < _CHECKED or number & (number - 1) == 0:
            with voice.heard(False):
                self._check(list(samples))
        with contextlib.nullcontext() if self._is_heard else voice.heard(False):
            collated = self.original(samples)
        batch = self._mark(collated, len(samples))
        self._batches += 1  # one in which rows don't stay apart is followed by a check
        return batch

    def _check(self, samples: list[Any]) -> None:
        """Collate copies of the samples, all and halves. A single one goes with that before, or with itself."""
        if len(samples) == 1:
            samples = [*(self._last or samples), *samples]
        half = len(samples) // 2
        try:
            copies = [[*map(copy.deepcopy, samples)] for _ in range(2)]
            self._last = copy.deepcopy(samples[-1:])
        except Exception as error:
            raise _refusal(
                self._name, f"gets samples that can't be copied, to see whether they do ({error})"
            ) from error
        self._watch = self._watch or kept.Watch(self.original)
        self._watch.begin()
        whole = self.original(copies[0])
        if self._watch.drew:
            raise _refusal(self._name, "draws random numbers")
        if changed := self._watch.changes():
            raise _refusal(self._name, f"changes its {next(iter(changed))!r} with each batch")
        parts = [self.original(copies[1][:half]), self.original(copies[1][half:])]
        kinds = dict(_kinds("batch", whole, parts, [half, len(samples) - half]))
        self._kinds = self._kinds or kinds
        for name in [*self._kinds, *kinds]:
            if self._kinds.get(name) != kinds.get(name):
                raise _refusal(name, "is not of one kind in all batches")

    def _mark(self, value: Any, count: int, name: str = "batch") -> Any:
        kind = self._kinds.get(name, _Kind("nothing"))
        if kind.what == "column" and isinstance(value, torch.Tensor) and value.dim() > kind.about:
            if value.size(kind.about) == count:
                return Column(name, value, kind.about)
            raise _refusal(name, f"has {value.size(kind.about)} rows for {count} samples")
        if kind.what == "items" and type(value) is kind.about:
            if len(value) == count:
                return Items(name, value)
            raise _refusal(name, f"has {len(value)} items for {count} samples")
        if kind.what == "constant" and not nesting.items(value):
            return Constant(name, value)
        items = nesting.items(value)
        if kind.what != "container" or items is None or tuple(items) != kind.about:
            raise _refusal(name, "is not of one kind in all batches")
        return nesting.rebuilt(value, {key: self._mark(item, count, _part(name, key)) for key, item in items.items()})


def _part(name: str, key: Any) -> str:
    return f"{name}[{key!r}]"


def _kinds(name: str, whole: Any, parts: Sequence[Any], sizes: Sequence[int]) -> Iterator[tuple[str, _Kind]]:
    """What the parts of a batch are, by name: of `whole`, all samples', and of `parts`, those of `sizes` of them."""
    if any(type(part) is not type(whole) for part in parts):
        raise _refusal(name, f"is a {type(whole).__name__} or a {type(parts[0]).__name__}, depending on the samples")
    if isinstance(whole, torch.Tensor):
        yield name, _kind_of_tensor(name, whole, parts, sizes)
        return
    inner = [nesting.items(value) for value in (whole, *parts)]
    arrays = rng.np is not None and isinstance(whole, rng.np.ndarray) and whole.ndim > 0
    is_sequence = arrays or isinstance(whole, (list, tuple))
    if is_sequence and [len(value) for value in (whole, *parts)] == [sum(sizes), *sizes]:
        _compare_items(name, whole, parts)
        yield name, _Kind("items", type(whole))
        return
    if inner[0] is None:
        if len({_text(value, name) for value in (whole, *parts)}) > 1:
            raise _refusal(name, "depends on which samples are in the batch, and has no row for each")
        yield name, _Kind("constant")
        return
    whole_items, *others = [items or {} for items in inner]
    if any(list(each) != list(whole_items) for each in others):
        lengths = ", ".join(str(len(each)) for each in others)
        raise _refusal(name, f"has {len(whole_items)} entries for {sum(sizes)} samples, and {lengths} for its halves")
    yield name, _Kind("container", tuple(whole_items))
    for key, value in whole_items.items():
        yield from _kinds(_part(name, key), value, [each[key] for each in others], sizes)


def _kind_of_tensor(name: str, whole: Any, parts: Sequence[Any], sizes: Sequence[int]) -> _Kind:
    if type(whole) is not torch.Tensor or whole.layout != torch.strided or whole.requires_grad:
        raise _refusal(name, "is no plain tensor")
    for dim in range(whole.dim()):
        wanted = [[*whole.shape[:dim], size, *whole.shape[dim + 1 :]] for size in sizes]
        if whole.size(dim) == sum(sizes) and [list(each.shape) for each in parts] == wanted:
            if any(each.dtype != whole.dtype for each in parts) or not _same(torch.cat(list(parts), dim), whole):
                raise _refusal(name, "has rows that depend on which other samples are in the batch")
            return _Kind("column", dim)
    if all(each.shape == whole.shape and _same(each, whole) for each in parts):
        return _Kind("constant")
    shapes = ", ".join(str(list(each.shape)) for each in parts)
    raise _refusal(
        name,
        f"has the shape {list(whole.shape)} for {sum(sizes)} samples, and {shapes} for its halves of "
        f"{' and '.join(map(str, sizes))}, as where it is padded to the longest sample or has no row for each",
    )


def _compare_items(name: str, whole: Any, parts: Sequence[Any]) -> None:
    """Whether the items are the same, and can travel."""
    for index, (item, other) in enumerate(zip(whole, itertools.chain(*parts))):
        if _text(item, _part(name, index)) != _text(other):
            raise _refusal(_part(name, index), "depends on which other samples are in the batch")


def _text(value: Any, name: str = "it") -> str:
    """The same for the same values. Raises `ValueError` for what doesn't come to other ranks as it is."""
    tensors: list[torch.Tensor] = []
    try:
        text = codec.dumps(value, tensors)
        came = codec.loads(text, tensors)
    except TypeError as error:
        raise _refusal(name, f"has no rows that could be told apart: {error}") from None
    if not _alike(value, came):
        raise _refusal(name, f"holds a {type(value).__name__} that doesn't come to other ranks as it is")
    sums = [(str(each.dtype), list(each.shape), checksum(each).tolist()) for each in tensors]
    return f"{text} {sums}" if tensors else text


def _alike(value: Any, came: Any) -> bool:
    """Whether two nestings have the same types."""
    if type(value) is not type(came):
        return False
    inner, others = nesting.items(value), nesting.items(came)
    return inner is None or others is None or all(map(_alike, inner.values(), others.values()))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, so that NaN is NaN."""
    return one.dtype == other.dtype and torch.equal(bytes_of(plain(one)), bytes_of(plain(other)))


def _refusal(what: str, why: str) -> ValueError:
    return ValueError(
        f"shard_loader(loader, rows=True): rows don't stay apart in the loader's collate_fn: {what} {why}. Leave out "
        "rows=True: then every rank loads whole batches, as the original does"
    )
