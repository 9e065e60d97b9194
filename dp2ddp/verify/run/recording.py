"""Read what `recorder` wrote: one process's steps, losses and batches."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dp2ddp.verify.emulate.synthetic import MadeUp
from dp2ddp.verify.run.state import ALIGNMENT


@dataclass(frozen=True)
class Slot:
    """A parameter in a step's bytes: its name, dtype and shape, where it starts, in bytes, and whose it is."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    model: str = ""

    @property
    def size(self) -> int:
        """Bytes, without padding."""
        return math.prod(self.shape) * torch.empty(0, dtype=self.dtype).element_size()


@dataclass(frozen=True)
class Step:
    """An optimizer step: which optimizer (in order of first use), its parameters' places, the number of their file,
    seconds since the start, the checksums of the global generators (`state.generators`), the script's line, the norms
    of the gradients (None: a parameter had none), and of what the optimizer held before its first step."""

    optimizer: int
    slots: tuple[Slot, ...]
    file: int
    time: float = math.nan
    generators: tuple[int, ...] = ()
    at: str | None = None
    gradients: tuple[float | None, ...] = ()
    held: tuple[float, ...] = ()


@dataclass(frozen=True)
class Loss:
    """The sum of what `backward` was called on, before step `step`, the script's line that called it, and the
    optimizers (in the order in which they were made) whose parameters had gradients already."""

    step: int
    value: float
    at: str | None = None
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """The sample indices that a loader fetched before step `step`; `iterator` counts the iterations over loaders."""

    iterator: int
    indices: Any
    step: int = 0
    at: str | None = None


@dataclass(frozen=True)
class Wrapped:
    """A model that ran in a wrapper: its class, the script's line, before which step it did first, its buffers."""

    model: str
    at: str | None
    step: int
    buffers: tuple[str, ...]


@dataclass(frozen=True)
class Forward:
    """A call of a replica of a wrapped model of class `model`, before step `step`: the sums (`state.sums`) of what it
    was `given`, its `modes` (whether it trains, and how many of its modules do), and the norms of its buffers."""

    model: str
    replica: int
    step: int
    given: tuple[tuple[float, ...], ...]
    modes: tuple[bool, int]
    buffers: tuple[float, ...]


@dataclass(frozen=True)
class Print:
    """The first thing that a line of the script printed."""

    at: str
    text: str


@dataclass
class Recording:
    """One process's recording.

    Attributes:
        starts: by optimizer, the parameters before its first step.
        models: by a parameter's name, the models that have one of that name.
        prints: what the script's lines printed first (of an original).
        settings: the optimizers' settings as they change: the step (from 0) that took them, whose, and its groups'.
        synthetic: the data sets that hold made-up samples, each once.
        mixed: the dtype that `autocast` casts to ("bfloat16"); None: the script uses none.
        split: whether a batch was split over emulated replicas.
        wrapped: the wrapped models, in the order in which they ran first.
        left: those that still were in an `nn.DataParallel`, in a converted script.
        forwards: the calls of their replicas.
        took: which iteration over a loader the script took a batch from, and before which step.
        loaders: what the loader of each iteration was made with.
        logged: what the script's own lines logged.
        synchronised: the script's lines that ask for BatchNorm over all ranks.
        modules: what the modules gave out, and their gradients, in the step that was asked for.
        drew: whether a wrapped model drew random numbers (of a script that isn't made for the runtime).
        wrote: the files that a rank other than 0 opened to write.
        scales: the `GradScaler`s' scale after each update.
        ended: False where the process was killed.
    """

    folder: Path
    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    starts: dict[int, Step] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    prints: list[Print] = field(default_factory=list)
    synthetic: list[MadeUp] = field(default_factory=list)
    settings: list[tuple[int, int, list[dict[str, Any]]]] = field(default_factory=list)
    mixed: str | None = None
    split: bool = False
    wrapped: list[Wrapped] = field(default_factory=list)
    left: list[Wrapped] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    took: list[tuple[int, int]] = field(default_factory=list)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    logged: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    synchronised: list[str | None] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    drew: bool = False
    wrote: list[str] = field(default_factory=list)
    seconds: float = math.nan
    ended: bool = False

    def parameters(self, step: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and values of the parameters that the optimizer of step `step` (from 0) moved, after that step."""
        return self.values(self.steps[step])

    def values(self, at: Step) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and values of the parameters at `at`, one of `steps` or `starts`."""
        bytes_ = self.raw(at)
        for slot in at.slots:
            yield self.called(slot), bytes_[slot.start : slot.start + slot.size].view(slot.dtype).view(slot.shape)

    def called(self, slot: Slot) -> str:
        """A parameter's name; with its model's in front where two models have parameters of that name."""
        return f"{slot.model}.{slot.name}" if len(self.models.get(slot.name, ())) > 1 else slot.name

    def raw(self, at: Step) -> torch.Tensor:
        """The bytes of the parameters at `at`. Raises `FileNotFoundError` if they were discarded."""
        path = self.path(at)
        size = path.stat().st_size
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        # Mapped, not read: hundreds of steps of a model need no memory at once.
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)

    def path(self, at: Step) -> Path:
        """The file with the parameters at `at`."""
        return self.folder / f"{at.file}.bin"


class Reader:
    """Reads a recording (a `rank<r>` folder of `record`'s `--out`) while it is written.

    Attributes:
        recording: what was read so far.
    """

    def __init__(self, folder: Path) -> None:
        self.recording = Recording(folder)
        self._layouts: dict[int, tuple[Slot, ...]] = {}
        self._read = 0  # bytes
        self._rest = b""

    def more(self) -> None:
        """Read what was written since. Raises `FileNotFoundError` where nothing is recorded (yet)."""
        with (self.recording.folder / "events.jsonl").open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["kind"] == "layout":
                self._layouts[event["optimizer"]] = _slots(event["tensors"])
            else:
                _add(self.recording, event, self._layouts)


def read(folder: Path) -> Recording:
    """The recording in `folder`.

    Raises:
        FileNotFoundError: nothing was recorded there.
    """
    reader = Reader(folder)
    reader.more()
    return reader.recording


def _add(recording: Recording, event: Any, layouts: Mapping[int, tuple[Slot, ...]]) -> None:
    kind, step = event["kind"], event["step"]
    if kind == "start":
        slots, held = layouts[event["optimizer"]], tuple(event["held"])
        recording.starts[event["optimizer"]] = Step(event["optimizer"], slots, event["file"], held=held)
        for slot in slots:
            recording.models.setdefault(slot.name, set()).add(slot.model)
    elif kind == "step":
        slots = layouts[event["optimizer"]]
        sums, told = tuple(event["generators"]), (event["at"], tuple(event["gradients"]))
        recording.steps.append(Step(event["optimizer"], slots, event["file"], event["time"], sums, *told))
    elif kind == "synthetic":
        recording.synthetic += {MadeUp(**event["data"])} - set(recording.synthetic)
    elif kind == "again":
        recording.batches[:] = [batch for batch in recording.batches if batch.iterator != event["iterator"]]
        recording.took[:] = [taken for taken in recording.took if taken[0] != event["iterator"]]
    elif kind == "loader":
        recording.loaders[event["iterator"]] = event["told"]
    elif kind == "end":
        recording.seconds, recording.ended = event["seconds"], True
    elif kind in _ONCE:
        setattr(recording, kind, _ONCE[kind](event))
    else:
        name, made = _LISTS[kind]
        getattr(recording, name).append(made(step, event))


_ONCE: Mapping[str, Callable[[Any], Any]] = {
    "split": lambda event: True,
    "drew": lambda event: True,
    "mixed": lambda event: event["dtype"],
}
#: By an event's kind: the list in the recording that it is added to, and what is added.
_LISTS: Mapping[str, tuple[str, Callable[[int, Any], Any]]] = {
    "loss": ("losses", lambda step, event: Loss(step, event["value"], event["at"], tuple(event["kept"]))),
    "batch": ("batches", lambda step, event: Batch(event["iterator"], event["indices"], step, event["at"])),
    "print": ("prints", lambda step, event: Print(event["at"], event["text"])),
    "settings": ("settings", lambda step, event: (step, event["optimizer"], event["groups"])),
    "wrapped": ("wrapped", lambda step, event: _wrapped(step, event)),
    "left": ("left", lambda step, event: _wrapped(step, event)),
    "forward": ("forwards", lambda step, event: _forward(step, event)),
    "took": ("took", lambda step, event: (event["iterator"], step)),
    "log": ("logged", lambda step, event: event["text"]),
    "sync_bn": ("synchronised", lambda step, event: event["at"]),
    "module": ("modules", lambda step, event: event),
    "wrote": ("wrote", lambda step, event: event["name"]),
    "scale": ("scales", lambda step, event: event["value"]),
}


def _wrapped(step: int, event: Any) -> Wrapped:
    return Wrapped(event["model"], event["at"], step, tuple(event["buffers"]))


def _forward(step: int, event: Any) -> Forward:
    given = tuple(map(tuple, event["given"]))
    return Forward(event["model"], event["replica"], step, given, tuple(event["modes"]), tuple(event["buffers"]))


def _slots(tensors: Sequence[Sequence[Any]]) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    start = 0
    for model, name, dtype, shape in tensors:
        slot = Slot(name, getattr(torch, dtype), tuple(shape), start, model)
        slots.append(slot)
        start += slot.size + -slot.size % ALIGNMENT
    return tuple(slots)


def global_losses(recordings: Sequence[Recording]) -> list[float]:
    """The losses over all ranks: the one that they share, or the mean of theirs."""
    return [_combine(losses) for losses in zip(*(recording.losses for recording in recordings))]


def _combine(losses: Sequence[Loss]) -> float:
    first = losses[0]
    if all(loss.value == first.value for loss in losses):
        return first.value
    return math.fsum(loss.value for loss in losses) / len(losses)


def batches_by_iterator(recorded: Recording) -> dict[int, list[Any]]:
    """The sample indices of the batches that the script took, for each iteration over a loader.

    Workers fetch ahead, by their number: what nobody took doesn't count.
    """
    taken = Counter(iterator for iterator, _ in recorded.took)
    grouped: dict[int, list[Any]] = {}
    for batch in recorded.batches:
        if len(grouped.get(batch.iterator, ())) < taken[batch.iterator]:
            grouped.setdefault(batch.iterator, []).append(batch.indices)
    return grouped


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
