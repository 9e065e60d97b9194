"""What the ranks' replicas return, as one value.

Tensors are joined along the batch's dimension, and lists with an entry for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable

import torch

from . import codec, large, place
from .cutting import Call, Source
from .gradients import Gather, Layout, reached
from .nesting import items, nested, rebuilt, tensors
from .rows import whole
from .world import Divergence, Told, gather_rows, world

_UNLIKE = (
    "the wrapped model at {} returned lists or dicts with other entries on other ranks, which nn.DataParallel doesn't "
    "gather, either: return the same structure whatever the rows are, and whatever it draws"
)


class Said:
    """What this rank tells of what its replica has returned.

    Attributes:
        tensors: all that are in it.
        outline: the rest, as plain values: `int` the number of a tensor, `["=", value]`, `["?"]` what can't be told,
            `["d", pairs]`, `["l", pairs]` of a list or tuple; of one with as many entries as rows also whether these
            are the rows', and the entries themselves, if they can be sent.
    """

    def __init__(self, dim: int, own_rows: int | None) -> None:
        self._dim, self._rows = dim, own_rows
        self.tensors: list[torch.Tensor] = []

    def outline(self, value: Any) -> Any:
        """Of a value; its tensors go to `tensors`."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return len(self.tensors) - 1
        inner = items(value)
        if inner is None:
            return ["=", value] if _is_plain(value) else ["?"]
        pairs = [[_key(key), self.outline(each)] for key, each in inner.items()]
        if type(value) not in (list, tuple) or not self._rows or len(value) != self._rows:
            return ["l" if isinstance(value, (tuple, list)) else "d", pairs]
        can_go = _is_plain(value) and not any(each.requires_grad for each in tensors(value))
        return ["l", pairs, self._are_of_rows(value), value if can_go else None]

    def _are_of_rows(self, value: Any) -> bool:
        found = tensors(value)
        of_rows = [t.dim() > self._dim and t.size(self._dim) == self._rows for t in found]
        if isinstance(value, tuple) or any(isinstance(each, torch.Tensor) for each in value):
            return not any(of_rows) and not (isinstance(value, tuple) and found)
        return not found or not all(of_rows)

    def described(self, sources: Sequence[Source]) -> list[Any]:
        """Of each tensor which of the sources it is made of; None if it has no graph."""
        nodes = [each.nodes for each in sources]
        return [reached(each, nodes) if each.requires_grad else None for each in self.tensors]


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    if isinstance(value, (Mapping, torch.nn.Module)):
        return False
    try:
        codec.dumps(value, [])
    except TypeError:
        return False
    return True


@dataclass
class Joint:
    """The ranks' outputs of one call."""

    call: Call  # what it was given
    dim: int  # along which rows are put together
    said: Said  # this rank's
    told: Sequence[Told]  # each rank's message, which begins with these tensors
    described: Sequence[Any]  # each rank's `Said.described`
    sources: Sequence[Source]  # what outputs may be made of
    memory: dict[Any, int]  # of the model's earlier calls: by an output's place, how many dimensions it had
    tell: Callable[..., None]  # for warnings

    @cached_property
    def _active(self) -> list[int]:
        return [rank for rank, size in enumerate(self.call.sizes) if size] or [0]

    def value(self, outlines: Sequence[Any], own: Any, path: tuple[Any, ...] = (), assigned: bool = False) -> Any:
        """The whole of what the ranks have, by their outlines. A collective, if it has tensors too large for a message.

        Args:
            outlines: each rank's.
            own: this rank's value.
            path: where in the outputs it is.
            assigned: it is no output, but what a forward assigned to an attribute.
        """
        active = [outlines[rank] for rank in self._active]
        if all(isinstance(each, int) for each in (*active, outlines[world.rank])):
            return self._assigned(path, outlines, own) if assigned else self._tensor(path, outlines)
        if any(isinstance(each, int) for each in active):
            raise Divergence(_UNLIKE.format(place.line()))
        kinds = {each[0] for each in active}
        if kinds <= {"=", "?"}:
            return self._plain(path, active, own, assigned)
        if all(len(each) > 2 for each in active) and any(each[2] for each in active):
            return self._entries(active, own)
        keyed = [dict(each[1]) for each in outlines if each[0] in "ld"]
        if len(kinds) > 1 or len(keyed) != len(outlines) or any(each.keys() != keyed[0].keys() for each in keyed):
            raise Divergence(_UNLIKE.format(place.line()))
        inner = items(own) or {}
        mapped = {
            key: self.value([each[_key(key)] for each in keyed], item, (*path, key), assigned)
            for key, item in inner.items()
        }
        return rebuilt(own, mapped) if inner else own

    # ---- what isn't a tensor -----------------------------------------------------------------------------------------

    def _plain(self, path: Any, active: Sequence[Any], own: Any, assigned: bool) -> Any:
        if all(each == active[0] for each in active) and active[0][0] == "=":
            return own
        what = f"assigns to {path[-1]}" if assigned else f"returns (at {'.'.join(map(str, path)) or 'the top'})"
        whose = "rank 0's is taken" if active[0][0] == "=" else "each rank has its own"
        self.tell(
            ("plain", path),
            f"the wrapped model at {place.line()} {what} a {type(own).__name__} that can't be put together from the "
            f"ranks': {whose}, which is about its rows alone. Return a tensor with an entry for each row",
        )
        return active[0][1] if active[0][0] == "=" else own

    def _entries(self, active: Sequence[Any], own: Any) -> Any:
        """A list with an entry for each row."""
        if any(each[3] is None for each in active):
            raise ValueError(
                f"the wrapped model at {place.line()} has made a list with an entry for each row, of objects that "
                "can't be sent to other ranks, or of tensors with a gradient. Make one tensor of the tensors, with a "
                "row for each row (torch.stack); else let entries be tensors without gradients, numbers or texts"
            )
        return type(own)(nested(onto_device, [entry for each in active for entry in each[3]]))

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def _shape(self, rank: int, number: int) -> list[int]:
        came = self.told[rank].tensors[number]
        return came if isinstance(came, list) else list(came.shape)

    def _anchors(self, outlines: Sequence[int]) -> list[torch.Tensor] | None:
        """What a tensor hangs on that each rank has by a number; None if it has no graph on any."""
        made_of = [self.described[rank][outlines[rank]] for rank in self._active]
        if not torch.is_grad_enabled() or all(each is None for each in made_of):
            return None
        sources = [any(each is not None and each[place] for each in made_of) for place in range(len(self.sources))]
        return [a for source, is_in in zip(self.sources, sources) if is_in for a in source.anchors]

    def _tensor(self, path: Any, outlines: Sequence[int]) -> torch.Tensor:
        shapes = {rank: self._shape(rank, outlines[rank]) for rank in self._active}
        most = max(map(len, shapes.values()))
        if any(self.call.sizes[rank] > 1 for rank in self._active):
            self.memory[path] = most
        elif len(self._active) > 1 and self.memory.get(path) == most + 1:
            most += 1
        restored = {rank: self._restored(rank, shape, most) for rank, shape in shapes.items()}
        if not most:  # scalars: a vector with an entry for each replica
            return self._joined(outlines, {rank: [1] for rank in self._active}, 0)
        dim = min(self.dim, most - 1)
        if len({(len(shape), *shape[:dim], *shape[dim + 1 :]) for shape in restored.values()}) > 1:
            told = ", ".join(f"{shape} on rank {rank}" for rank, shape in shapes.items())
            raise ValueError(
                f"the outputs of the wrapped model at {place.line()} have different sizes along another dimension than "
                f"the batch's ({told}), so they can't be put together. Where pad_packed_sequence made them, pass it "
                "total_length=x.size(1) (the padded length of the whole batch); else pad them to one length"
            )
        return self._joined(outlines, restored, dim)

    def _restored(self, rank: int, shape: list[int], most: int) -> list[int]:
        """A rank's shape, with the dimension that was lost (`squeeze`) as it had a single row."""
        is_lost = len(shape) == most - 1 and self.call.sizes[rank] == 1 and self.call.rows not in (None, 1)
        return [*shape[: self.dim], 1, *shape[self.dim :]] if is_lost else shape

    def _joined(self, outlines: Sequence[int], shapes: Mapping[int, list[int]], dim: int) -> torch.Tensor:
        """One tensor of those that the active ranks have, in these shapes, along `dim`."""
        sizes = tuple(shapes[rank][dim] if rank in shapes else 0 for rank in range(world.size))
        local = self.said.tensors[outlines[world.rank]]
        own_shape = shapes.get(world.rank) or [*local.shape]
        rows = local if list(local.shape) == own_shape else local.reshape(own_shape)
        came = [self.told[rank].tensors[outlines[rank]] for rank in self._active]
        layout, anchors = Layout(sizes, dim), self._anchors(outlines)
        if anchors is not None and not rows.requires_grad:
            rows = rows.detach().requires_grad_(rows.is_floating_point() or rows.is_complex())
        if all(isinstance(each, torch.Tensor) for each in came):
            whole = torch.cat([each.reshape(shapes[rank]) for rank, each in zip(self._active, came)], dim)
            return whole if anchors is None else Gather.apply(rows, layout, whole, *anchors)
        if dim == 0 and sum(sizes) * rows[:1].numel() * rows.element_size() > large.LARGE:
            return large.output(rows if anchors is not None else rows.detach(), layout, anchors or [])
        if anchors is None:
            return gather_rows(rows, sizes, dim)
        return Gather.apply(rows, layout, None, *anchors)  # type: ignore[no-any-return]

    def _assigned(self, path: Any, outlines: Sequence[int], own: torch.Tensor) -> torch.Tensor:
        """What the script sees of a tensor that each rank has assigned: the whole, where it has the batch's rows."""
        shapes = {rank: self._shape(rank, outlines[rank]) for rank in self._active}
        dims = range(min(map(len, shapes.values()))) if self.call.rows is not None else ()
        for dim in sorted(dims, key=lambda dim: dim != self.dim):
            others = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes.values()}
            if len(others) == 1 and all(shape[dim] == self.call.sizes[rank] for rank, shape in shapes.items()):
                return self._joined(outlines, shapes, dim)
        if self._anchors(outlines) is not None and not any(shapes.values()):
            self.tell(
                ("scalar", path),
                f"the wrapped model at {place.line()} assigns to {path[-1]} a number that each rank has computed of "
                "its rows: there is one for each rank in it. Return it instead, or take its .mean()",
            )
            return self._joined(outlines, {rank: [1] for rank in self._active}, 0)
        first = self.told[0].tensors[outlines[0]]
        return first if isinstance(first, torch.Tensor) and not own.requires_grad else own


def onto_device(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of it, on this rank's device."""
    moved: torch.Tensor = whole(tensor).to(world.device)
    return moved


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bool, type(None))) else repr(key)


def is_of_rows(value: Any, own_rows: int | None) -> bool:
    """Whether there is a tensor in it that has this rank's rows along any dimension, so that it is this rank's own."""
    return own_rows is not None and any(own_rows in each.shape for each in tensors(value))
