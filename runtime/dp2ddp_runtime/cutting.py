"""A rank's rows of each argument of the wrapped model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from . import place
from .gradients import ALONE, Copy, Layout, Take
from .nesting import chunks, items, nested, rebuilt, tensors
from .rows import Rows, is_sharded, whole
from .world import world

_CHECKED = 10  # calls whose tensors are compared; after these, those whose number is a power of two
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


class Source(NamedTuple):
    """Something that outputs may be made of: where its gradient arrives, and its anchors."""

    nodes: set[Any]
    anchors: list[torch.Tensor]


class Call(NamedTuple):
    """One call of a wrapped model.

    Attributes:
        args, kwargs: for this rank's rows; rank 0's on a rank without any.
        sizes: how many rows each rank has. Where nothing can be cut, rank 0 has one, and stands for all.
        rows: how many there are; None where nothing can be cut.
        sources: the inputs that have gradients.
        seen: sums of the inputs, and plain values; empty in calls that aren't compared.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sizes: tuple[int, ...]
    rows: int | None
    sources: list[Source]
    seen: list[str]

    @property
    def own_rows(self) -> int:
        """On which this rank runs."""
        return self.sizes[world.rank] or self.sizes[0]


class Cutter:
    """Cuts the arguments of one wrapped model along `dim` for so many `replicas`, which are on the first ranks."""

    def __init__(self, dim: int, replicas: int) -> None:
        self._dim, self._replicas = dim, replicas
        self._calls = 0
        # Of the latest call, as `Call` has them:
        self._rows: int | None = None
        self._sizes: tuple[int, ...] = ()
        self._tensors: list[Any] = []
        self._batch: torch.Tensor | None = None  # which says how many rows there are
        self._sources: list[Source] = []
        self._seen: list[str] = []
        self._told: set[Any] = set()
        self._lists: dict[Any, bool] = {}  # by place: whether it has an entry a row

    def cut(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Each rank's part of a call's arguments, on its device.

        Tensors in tuples, lists and mappings are cut in `torch.chunk`'s sizes; so are lists and tuples that have as
        many entries as the batch has rows, unless a tensor numbers the rows. All else goes to each replica as it is, as
        with `nn.DataParallel`.
        """
        self._calls += 1
        self._rows = rows = self._count((args, kwargs))
        self._sizes = (1,) + (0,) * (world.size - 1) if rows is None else chunks(rows, self._replicas)
        self._sources, self._seen = [], []
        own_args, own_kwargs = self._part((), args), self._part((), kwargs)
        self._tensors = []
        if rows is None:
            self.warn_once(
                "whole",
                f"{place.line()} gives the wrapped model nothing that can be cut into rows "
                f"({', '.join(type(each).__name__ for each in (*args, *kwargs.values())) or 'no arguments'}): every "
                "rank computes all of it, and rank 0's output counts. To share the work, pass tensors, or lists with "
                "an entry for each row",
            )
        return Call(own_args, own_kwargs, self._sizes, rows, self._sources, self._seen)

    def _count(self, arguments: Any) -> int | None:
        """How many rows the batch has: those of the first tensor; else the entries of lists that have as many."""
        scattered = _scattered(arguments)
        self._tensors, self._batch = scattered, None
        if any(isinstance(each, PackedSequence) for each in scattered):
            return None
        found = [each for each in scattered if each.dim() > self._dim]
        batch = self._batch = next((each for each in found if isinstance(each, Rows)), found[0] if found else None)
        if batch is not None:
            return batch.size(self._dim)
        args, kwargs = arguments
        counts = {len(each) for each in (*args, *kwargs.values()) if type(each) in (list, tuple) and len(each) > 1}
        return counts.pop() if len(counts) == 1 else None

    def _is_list_of_rows(self, path: Any, value: Any) -> bool:
        """Whether a list or tuple has an entry for each row. What was seen of a larger batch holds for smaller ones."""
        rows = self._rows
        if type(value) not in (list, tuple) or rows is None:
            return False
        if path in self._lists:
            return self._lists[path] and len(value) == rows
        inner = tensors(value)
        are_cut = inner and all(each.dim() > self._dim and each.size(self._dim) == rows for each in inner)
        # One with the tensor that says how many rows there are holds inputs; of numbered ones replicas have all.
        has_batch = any(each is self._batch for each in inner)
        found = len(value) == rows > 0 and not are_cut and not has_batch and not self._are_numbered
        if rows > 4:  # few entries may as well be a size, or several inputs
            self._lists[path] = found
        return found

    @property
    def _are_numbered(self) -> bool:
        """Whether a tensor of the call numbers its rows, by which the module finds the entries of whole lists."""
        numbers = [t for t in self._tensors if type(t) is torch.Tensor and t.dim() == 1 and t.dtype == torch.int64]
        return any(each.tolist() == [*range(self._rows or 0)] for each in numbers)

    def warn_once(self, key: Any, text: str) -> None:
        """A warning, once."""
        if key not in self._told:
            self._told.add(key)
            place.warn(text)

    def _part(self, path: tuple[Any, ...], value: Any) -> Any:
        """This rank's part of an argument, or of what is in one."""
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        if isinstance(value, PackedSequence):
            return value.to(world.device)._replace(data=self._copied(whole(value.data)))  # type: ignore[arg-type]
        if path and self._is_list_of_rows(path, value):
            if not tensors(value):
                self.warn_once(
                    ("list", *path),
                    f"{place.line()} gives the wrapped model a list of {len(value)} entries without tensors (argument "
                    f"{'.'.join(map(str, path))}), as many as the batch has rows: each rank has those of its rows. If "
                    "they aren't about rows, keep them in the model",
                )
            rank = world.rank if self._sizes[world.rank] else 0
            mine = value[sum(self._sizes[:rank]) : sum(self._sizes[: rank + 1])]
            self._look_at(f"{len(value)} entries")
            return nested(lambda tensor: self._copied(whole(tensor)), mine)
        if isinstance(value, (tuple, list, Mapping)):
            inner = items(value) or {}
            mapped = {key: self._part((*path, key), item) for key, item in inner.items()}
            return rebuilt(value, mapped) if mapped else value
        if isinstance(value, _PLAIN):
            self._look_at(value)
        return value

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad and torch.is_grad_enabled():
            anchor, tensor = Copy.apply(ALONE, None, tensor)
            self._sources.append(Source({tensor.grad_fn}, [anchor]))
        return self._moved(tensor)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        device = world.device
        return tensor.to(device, non_blocking=True) if device.type == "cuda" and tensor.device != device else tensor

    def _tensor(self, path: tuple[Any, ...], tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() <= self._dim or self._rows is None or tensor.layout != torch.strided:
            self._look_at(tensor)
            return self._copied(whole(tensor)) if tensor.layout == torch.strided else self._moved(tensor)
        total = tensor.size(self._dim)
        sizes = self._sizes if total == self._rows else self._of_other_rows(path, tensor)
        if sizes is None:
            self._look_at(tensor)
            return self._copied(whole(tensor))
        if total > sum(sizes):  # parts for replicas that there aren't
            tensor = whole(tensor).narrow(self._dim, 0, sum(sizes))
        batch: Any = tensor if is_sharded(tensor) and not self._dim and tensor._sizes == sizes else None  # type: ignore[attr-defined]
        if batch is None:
            tensor = whole(tensor)
            self._look_at(tensor)
            if tensor.requires_grad and torch.is_grad_enabled():
                taken, anchor = Take.apply(tensor, Layout(sizes, self._dim))
                self._sources.append(Source({taken.grad_fn}, [anchor]))
                return self._moved(taken)
        rows = Layout(sizes, self._dim).take(tensor) if batch is None else batch._rows
        moved = self._moved(rows)
        # A copy: what the module does to its input must not make the ranks' batches differ.
        own = moved.clone() if moved is rows else moved
        if own.requires_grad:  # of a large output of another model
            batch._used = True
            self._sources.append(Source({own.grad_fn}, list(batch._anchors)))
        return own

    def _of_other_rows(self, path: tuple[Any, ...], tensor: torch.Tensor) -> tuple[int, ...] | None:
        """The sizes in which a tensor is cut that has other rows than the batch; None if every rank has all of it."""
        assert self._rows is not None
        parts = chunks(tensor.size(self._dim), self._replicas)
        is_cut = sum(map(bool, parts)) >= sum(map(bool, self._sizes))
        sizes = tuple(part if size else 0 for part, size in zip(parts, self._sizes))
        how = "it was cut as well, in its own rows, as nn.DataParallel does" if is_cut else "every rank has all of it"
        self.warn_once(
            path,
            f"{place.line()} gives the wrapped model a batch of {self._rows} rows, and with it a tensor of shape "
            f"{list(tensor.shape)} (argument {'.'.join(map(str, path))}): {how}",
        )
        return sizes if is_cut else None

    # ---- what has to be the same on all ranks ------------------------------------------------------------------------

    def _look_at(self, value: Any) -> None:
        if self._calls > _CHECKED and self._calls & (self._calls - 1):
            return
        if not isinstance(value, torch.Tensor):
            self._seen.append(repr(value))
        elif value.layout == torch.strided and not value.is_meta:
            data = whole(value).detach()
            total = data.abs().double().sum() if data.is_complex() else data.double().sum()
            self._seen.append(f"{list(data.shape)} {float(total)}")


def _scattered(value: Any) -> list[Any]:
    """The tensors, and packed sequences, in tuples, lists and mappings."""
    if isinstance(value, (torch.Tensor, PackedSequence)):
        return [value]
    inner = items(value) if isinstance(value, (tuple, list, Mapping)) else None
    return [found for each in inner.values() for found in _scattered(each)] if inner else []
