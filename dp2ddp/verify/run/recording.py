"""Read what `hooks` wrote: one process's steps, losses and batches."""

from __future__ import annotations

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Slot:
    """A parameter: the class of its model, its name, dtype and shape."""

    model: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """An optimizer step, or what comes before its first one.

    Attributes:
        optimizer: which (in order of first use).
        slots: its parameters.
        sketches: what is known of their values (`state.sketch`).
        step: how many steps were made before.
        at: the script's line.
        gradients: their norms; None: a parameter had none.
        momentum: the norms of what the optimizer held before its first step.
    """

    optimizer: int
    slots: tuple[Slot, ...]
    sketches: Sequence[Sequence[float]]
    step: int = 0
    at: str | None = None
    gradients: Sequence[float | None] = ()
    momentum: Sequence[float] = ()


@dataclass(frozen=True)
class Loss:
    """The sum of what `backward` was called on, before step `step`, the script's line that called it, and the
    optimizers (in the order in which they were made) whose parameters had gradients already."""

    step: int
    value: float
    at: str | None = None
    kept: Sequence[int] = ()


@dataclass(frozen=True)
class Batch:
    """The sample indices of a batch that the script took from a loader before step `step`, and the line that did.

    `iterator` counts the iterations over loaders.
    """

    iterator: int
    indices: Any
    step: int = 0
    at: str | None = None


@dataclass(frozen=True)
class Forward:
    """A call of a replica of a wrapped model of class `model`, before step `step`: the sums (`state.sums`) of what it
    was `given` and what it `returned`, its `modes` (whether it trains, and how many of its modules do), and the norms
    of its buffers before the call, by name."""

    model: str
    replica: int
    step: int
    given: Sequence[Sequence[float]]
    returned: Sequence[Sequence[float]]
    modes: tuple[bool, int]
    buffers: Mapping[str, float]


@dataclass(frozen=True)
class Settings:
    """What an optimizer's groups are set to from step `step` (from 0) on."""

    step: int
    optimizer: int
    groups: Sequence[dict[str, Any]]


@dataclass
class Recording:
    """One process's recording.

    Attributes:
        starts: by optimizer, the parameters before its first step.
        models: by a parameter's name, the classes of the models that have one of that name.
        settings: the optimizers' settings as they change.
        synthetic: the data sets that hold made-up samples, each once.
        mixed: the dtype that `autocast` casts to ("bfloat16"); None: the script uses none.
        split: whether a batch was split over emulated replicas.
        forwards: the calls of wrapped models' replicas.
        lost: what `nn.DataParallel`'s replicas lose that one GPU keeps, in words.
        loaders: what the loader of each iteration was made with.
        logged: what the script's own lines logged.
        drew: whether a wrapped model drew random numbers (of a script that isn't made for the runtime).
        wrote: the files that a rank other than 0 opened to write.
        scales: the `GradScaler`s' scale after each update.
    """

    folder: Path
    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    starts: dict[int, Step] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    synthetic: list[str] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    mixed: str | None = None
    split: bool = False
    forwards: list[Forward] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    logged: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    drew: bool = False
    wrote: list[str] = field(default_factory=list)

    def called(self, slot: Slot) -> str:
        """A parameter's name; with its model's in front where two models have parameters of that name."""
        return f"{slot.model}.{slot.name}" if len(self.models.get(slot.name, ())) > 1 else slot.name


def read(folder: Path) -> Recording:
    """The recording in `folder`.

    Raises:
        FileNotFoundError: nothing was recorded there.
    """
    recording = Recording(folder)
    layouts: dict[int, tuple[Slot, ...]] = {}
    with (folder / "events.jsonl").open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # else the process was killed there
                event = json.loads(line)
                _add(recording, event.pop("kind"), event, layouts)
    return recording


#: What the lists of a recording hold where that isn't a value alone, by their names, which are the events', too.
_CLASSES: Mapping[str, type] = {
    "losses": Loss,
    "batches": Batch,
    "settings": Settings,
    "forwards": Forward,
}


def _add(recording: Recording, kind: str, event: dict[str, Any], layouts: dict[int, tuple[Slot, ...]]) -> None:
    """Add what `Recorder._write(kind, **event)` has written."""
    if kind in _CLASSES:
        getattr(recording, kind).append(_CLASSES[kind](**event))
    elif "value" in event:
        getattr(recording, kind).append(event["value"])
    elif kind == "layout":
        layouts[event["optimizer"]] = tuple(
            Slot(model, name, getattr(torch, dtype), tuple(shape)) for model, name, dtype, shape in event["tensors"]
        )
    elif kind in ("start", "step"):
        # A list of Python's floats would take four times the memory.
        sketches = [array("d", sketch) for sketch in event.pop("sketches")]
        step = Step(slots=layouts[event["optimizer"]], sketches=sketches, **event)
        if kind == "step":
            recording.steps.append(step)
            return
        recording.starts[step.optimizer] = step
        for slot in step.slots:
            recording.models.setdefault(slot.name, set()).add(slot.model)
    elif kind == "again":
        number = event["iterator"]
        last = max(place for place, batch in enumerate(recording.batches) if batch.iterator == number)
        del recording.batches[last]
    elif kind == "loader":
        recording.loaders[event["iterator"]] = event["made_with"]
    else:
        setattr(recording, kind, event.get("dtype", True))


def global_losses(recordings: Sequence[Recording]) -> list[float]:
    """The losses over all ranks: the one that they share, or the mean of theirs."""
    return [_combine(losses) for losses in zip(*(recording.losses for recording in recordings))]


def _combine(losses: Sequence[Loss]) -> float:
    first = losses[0]
    if all(loss.value == first.value for loss in losses):
        return first.value
    return math.fsum(loss.value for loss in losses) / len(losses)


def batches_by_iterator(recorded: Recording) -> dict[int, list[Any]]:
    """The sample indices of the batches, for each iteration over a loader."""
    grouped: dict[int, list[Any]] = defaultdict(list)
    for batch in recorded.batches:
        grouped[batch.iterator].append(batch.indices)
    return dict(grouped)


def is_same_set(whole: Any, parts: Sequence[Any]) -> bool:
    """Whether the ranks that fetched `parts` fetched the samples of `whole`, whichever of them, or all of it each."""
    if all(part == whole for part in parts) or not all(isinstance(part, list) for part in (whole, *parts)):
        return all(part == whole for part in parts)
    return sorted(map(str, whole)) == sorted(str(index) for part in parts for index in part)


def is_union(whole: Any, parts: Sequence[Any]) -> bool:
    """Whether the ranks that fetched `parts` fetched the batch `whole`: shards in rank order, or all of it each.

    A rank for which `torch.chunk` leaves no sample may fetch one as a placeholder, which doesn't count.
    """
    if all(part == whole for part in parts):
        return True
    if not isinstance(whole, list) or not whole or not all(isinstance(part, list) for part in parts):
        return False
    size = -(-len(whole) // len(parts))
    shards = [whole[start : start + size] for start in range(0, len(whole), size)]
    idle = parts[len(shards) :]
    return list(parts[: len(shards)]) == shards and all(len(part) <= 1 for part in idle)
