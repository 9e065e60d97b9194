"""Read what `step_hooks` wrote: one process's steps, losses and batches."""

from __future__ import annotations

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

Event = Any
"""Something that happened: a namespace of what `Recorder` wrote. Each has `step`, how many steps were made before."""


class Slot(NamedTuple):
    """A parameter: its name behind its model's class, its dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Recording:
    """One process's recording. Events are in the order in which they happened; `at` is the script's line.

    Attributes:
        starts: by optimizer (in order of first use), what comes before its first step: `slots`, its parameters, and
            `sketches`, what is known of their values (`state.sketch`).
        steps: the optimizer steps: `optimizer`, `slots`, `sketches`, `at`, `gradients` (their norms; None: a parameter
            had none) and `settings` (what each of the optimizer's groups was set to).
        losses: the sums of what `backward` was called on: `value`, `at`, and `kept`, the optimizers (in the order in
            which they were made) whose parameters had gradients already.
        batches: by iteration over a loader and number in it, what the script took: `indices` of samples, `at`.
        loaders: by iteration, what the loader was made with.
        forwards: the calls of wrapped models' replicas: `model`, its class, the numbers of the `call` and of the
            `replica`, the sums (`state.sums`) of what it was `given` and what it `returned`, its `modes` (whether it
            trains, and how many of its modules do), and the norms of its `buffers` before the call, by name.
        noted: the values of other events, by kind. Once each: "split" (a batch was split over emulated replicas),
            "drew" (a wrapped model drew random numbers), "mixed" (the dtype that `autocast` casts to), "lost" (what
            replicas lose that one GPU keeps), "meets" (replicas may talk to each other), "draws" (a backward drew
            random numbers), "synthetic" (a data set that was made up), "wrote" (a file that was opened to write).
            "logged": each line that the script logged.
    """

    starts: dict[int, Event] = field(default_factory=dict)
    steps: list[Event] = field(default_factory=list)
    losses: list[Event] = field(default_factory=list)
    batches: dict[tuple[int, int], Event] = field(default_factory=dict)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    forwards: list[Event] = field(default_factory=list)
    noted: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    @property
    def mixed(self) -> str | None:
        """The dtype that `autocast` casts to ("bfloat16"); None: the script uses none."""
        return next(iter(self.noted["mixed"]), None)


def read(folder: Path) -> Recording:
    """The recording in `folder`. Raises `FileNotFoundError` where nothing was recorded."""
    found = Recording()
    lists = {"step": found.steps, "loss": found.losses, "forward": found.forwards}
    known: dict[tuple[str, int], Any] = {}  # of each optimizer, what is written where it changes
    with (folder / "events.jsonl").open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):  # the process was killed there
                break
            event = SimpleNamespace(**json.loads(line))
            if event.kind in ("start", "step"):
                _complete(event, known)
            if event.kind == "start":
                found.starts[event.optimizer] = event
            elif event.kind == "batch":
                found.batches[event.iterator, event.number] = event
            elif event.kind == "loader":
                found.loaders[event.iterator] = event.made_with
            elif event.kind in ("step", "loss", "forward"):
                lists[event.kind].append(event)
            else:
                found.noted[event.kind].append(event.value)
    return found


def _complete(event: Event, known: dict[tuple[str, int], Any]) -> None:
    """Gives an optimizer's event what was written at an earlier one."""
    event.slots = event.slots and [Slot(name, dtype, tuple(shape)) for name, dtype, shape in event.slots]
    for name in ("slots", "settings"):
        if getattr(event, name) is None:
            setattr(event, name, known[name, event.optimizer])
        known[name, event.optimizer] = getattr(event, name)
    # A list of Python's floats would take four times the memory.
    event.sketches = [array("d", sketch) for sketch in event.sketches]


def global_losses(recordings: Sequence[Recording]) -> list[float]:
    """The losses over all ranks: the one that they share, or the mean of theirs."""
    losses = zip(*([loss.value for loss in each.losses] for each in recordings))
    return [values[0] if len({*values}) == 1 else math.fsum(values) / len(values) for values in losses]
