"""What a rank's replica is given: its rows of each argument of the wrapped model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from . import place
from .gradients import ALONE, Copy, Layout, Take
from .nesting import chunks, items, rebuilt, tensors
from .rows import Rows, is_apart, whole
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
        self.calls = 0
        self._told: set[Any] = set()
        self._lists: dict[Any, bool] = {}  # by place: whether it has an entry a row

    def cut(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Each rank's part of a call's arguments, on its device.

        Tensors in tuples, lists and mappings are cut in `torch.chunk`'s sizes; so are lists and tuples that have as
        many entries as the batch has rows. All else goes to each replica as it is, as with `nn.DataParallel`.
        """
        self.calls += 1
        is_compared = self.calls <= _CHECKED or not self.calls & (self.calls - 1)
        rows = self._rows((args, kwargs))
        sizes = (1,) + (0,) * (world.size - 1) if rows is None else chunks(rows, self._replicas)
        cutting = _Cutting(self, rows, sizes, is_compared)
        own_args, own_kwargs = cutting.part((), args), cutting.part((), kwargs)
        if rows is None:
            self.tell(
                "whole",
                f"{place.line()} gives the wrapped model nothing that can be cut into rows "
                f"({', '.join(type(each).__name__ for each in (*args, *kwargs.values())) or 'no arguments'}): every "
                "rank computes all of it, and rank 0's output counts. To share the work, pass tensors, or lists with "
                "an entry for each row",
            )
        return Call(own_args, own_kwargs, sizes, rows, cutting.sources, cutting.seen)

    def _rows(self, arguments: Any) -> int | None:
        """How many rows the batch has: those of the first tensor; else the entries of lists that have as many."""
        scattered = _scattered(arguments)
        if any(isinstance(each, PackedSequence) for each in scattered):
            return None
        found = [each for each in scattered if each.dim() > self._dim]
        batch = next((each for each in found if isinstance(each, Rows)), found[0] if found else None)
        if batch is not None:
            return batch.size(self._dim)
        args, kwargs = arguments
        counts = {len(each) for each in (*args, *kwargs.values()) if type(each) in (list, tuple) and len(each) > 1}
        return counts.pop() if len(counts) == 1 else None

    def is_list_of_rows(self, path: Any, value: Any, rows: int | None) -> bool:
        """Whether a list or tuple has an entry for each row. What was seen of a larger batch holds for smaller ones."""
        if type(value) not in (list, tuple) or rows is None:
            return False
        if path in self._lists:
            return self._lists[path] and len(value) == rows
        if len(value) != rows or not rows:
            found = False
        else:
            inner = tensors(value)
            found = not inner or not all(each.dim() > self._dim and each.size(self._dim) == rows for each in inner)
        if rows > 4:  # few entries may as well be a size, or several inputs
            self._lists[path] = found
        return found

    def tell(self, key: Any, text: str) -> None:
        """A warning, once."""
        if key not in self._told:
            self._told.add(key)
            place.warn(text)


class _Cutting:
    """One call's."""

    def __init__(self, cutter: Cutter, rows: int | None, sizes: tuple[int, ...], is_compared: bool) -> None:
        self._cutter, self._rows, self._sizes, self._is_compared = cutter, rows, sizes, is_compared
        self._dim, self._replicas = cutter._dim, cutter._replicas
        self.sources: list[Source] = []
        self.seen: list[str] = []

    def part(self, path: tuple[Any, ...], value: Any) -> Any:
        """This rank's part of an argument, or of what is in one."""
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        if isinstance(value, PackedSequence):
            moved: Any = value.to(world.device)  # type: ignore[arg-type]
            return moved._replace(data=self._copied(whole(moved.data)))
        if path and self._cutter.is_list_of_rows(path, value, self._rows):
            rank = world.rank if self._sizes[world.rank] else 0
            mine = value[sum(self._sizes[:rank]) : sum(self._sizes[: rank + 1])]
            self._look(f"{len(value)} entries")
            return self._whole(mine)
        if isinstance(value, (tuple, list, Mapping)):
            inner = items(value) or {}
            mapped = {key: self.part((*path, key), item) for key, item in inner.items()}
            return rebuilt(value, mapped) if mapped else value
        if isinstance(value, _PLAIN):
            self._look(repr(value))
        return value

    def _whole(self, value: Any) -> Any:
        """What every rank has all of, on this rank's device."""
        if isinstance(value, torch.Tensor):
            return self._copied(whole(value))
        inner = items(value) if isinstance(value, (tuple, list, Mapping)) else None
        return rebuilt(value, {key: self._whole(each) for key, each in inner.items()}) if inner else value

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad and torch.is_grad_enabled():
            anchor, tensor = Copy.apply(ALONE, None, tensor)
            self.sources.append(Source({tensor.grad_fn}, [anchor]))
        return self._moved(tensor)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        device = world.device
        return tensor.to(device, non_blocking=True) if device.type == "cuda" != tensor.device.type else tensor

    def _tensor(self, path: tuple[Any, ...], tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() <= self._dim or self._rows is None or tensor.layout != torch.strided:
            self._look_at(tensor)
            return self._copied(whole(tensor)) if tensor.layout == torch.strided else self._moved(tensor)
        total = tensor.size(self._dim)
        sizes = self._sizes if total == self._rows else self._of_other_rows(path, tensor)
        if sizes is None:
            self._look_at(tensor)
            return self._copied(whole(tensor))
        if is_apart(tensor) and self._dim == 0 and tensor._sizes == sizes:  # type: ignore[attr-defined]
            return self._deferred(tensor)
        tensor = whole(tensor)
        self._look_at(tensor)
        layout = Layout(sizes, self._dim)
        if tensor.requires_grad and torch.is_grad_enabled():
            rows, anchor = Take.apply(tensor, layout)
            self.sources.append(Source({rows.grad_fn}, [anchor]))
            return self._moved(rows)
        rows = layout.take(tensor)
        moved = self._moved(rows)
        # A copy: what the module does to its input must not make the ranks' batches differ.
        return moved.clone() if moved is rows else moved

    def _deferred(self, batch: Any) -> torch.Tensor:
        own = batch._rows
        moved = self._moved(own)
        rows: torch.Tensor = moved.clone() if moved is own else moved
        if rows.requires_grad:  # a large output of another model
            batch._used = True
            self.sources.append(Source({rows.grad_fn}, list(batch._anchors)))
        return rows

    def _of_other_rows(self, path: tuple[Any, ...], tensor: torch.Tensor) -> tuple[int, ...] | None:
        """The sizes in which a tensor is cut that has other rows than the batch; None if every rank has all of it."""
        assert self._rows is not None
        sizes = chunks(tensor.size(self._dim), self._replicas)
        is_cut = sum(map(bool, sizes)) == sum(map(bool, self._sizes))
        self._cutter.tell(
            path,
            f"{place.line()} gives the wrapped model a batch of {self._rows} rows, and with it a tensor of shape "
            f"{list(tensor.shape)} (argument {'.'.join(map(str, path))}): "
            + (
                "it was cut as well, in its own rows, as nn.DataParallel does" if is_cut else "every rank has all of it"
            ),
        )
        return sizes if is_cut else None

    # ---- what has to be the same on all ranks ------------------------------------------------------------------------

    def _look(self, text: str) -> None:
        if self._is_compared:
            self.seen.append(text)

    def _look_at(self, tensor: torch.Tensor) -> None:
        if self._is_compared and tensor.layout == torch.strided and not tensor.is_meta:
            data = whole(tensor).detach()
            total = data.abs().double().sum() if data.is_complex() else data.double().sum()
            self.seen.append(f"{list(data.shape)} {float(total)}")


def _scattered(value: Any) -> list[Any]:
    """The tensors, and packed sequences, in tuples, lists and mappings."""
    if isinstance(value, (torch.Tensor, PackedSequence)):
        return [value]
    inner = items(value) if isinstance(value, (tuple, list, Mapping)) else None
    return [found for each in inner.values() for found in _scattered(each)] if inner else []
