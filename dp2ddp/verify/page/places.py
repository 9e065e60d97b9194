"""Where two runs differ: findings with the script's line, files with their places, the output line by line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dp2ddp.verify.compare.finding import Finding
from dp2ddp.verify.compare.recordings import Comparison

_AROUND = 2  # lines of the script before and after
_PLACES = 20  # in a file

#: What each kind of finding is called, and what to look at first.
KINDS = {
    "exit": ("Another exit code", "Run both scripts by hand with the same arguments."),
    "count": ("More of something on one side", "Look for a loop, or a condition, that a rank decides for itself."),
    "start": (
        "They start from other weights",
        "Look for a seed that is set too late, or a checkpoint one side loads.",
    ),
    "written": ("Files that several ranks write", "Let rank 0 alone write."),
    "prints": ("Lines that several ranks print", "Let rank 0 alone print."),
    "sync_bn": ("BatchNorm over all ranks", "Leave `sync_bn=True` out to train as the original does."),
    "unwrapped": ("A model that isn't wrapped", "Wrap it with `ddp.wrap_model`, where the original wraps it."),
    "data": ("Other data", "Look at how the data are split, and at what the data set is made with."),
    "mode": ("Another mode", "Look for `model.train()` or `model.eval()` that one side leaves out."),
    "passed": ("Another number of batches in a step", "Look for a batch that is skipped, or a step that is left out."),
    "kept": ("Gradients that add up", "Look for `zero_grad()`: where it is called, and for which optimizer."),
    "state": ("Another state of an optimizer", "Look for a checkpoint that one side loads."),
    "input": ("Other samples", "Look at how samples are augmented and transformed, and at what workers seed."),
    "buffer": ("Other running statistics", "Look for BatchNorm's settings, and for what changes them on one rank."),
    "missing": ("A file that one side doesn't write", "Look for the rank that writes it, and for its name."),
    "left": ("An nn.DataParallel is left", "Wrap that model with `ddp.wrap_model`."),
    "batch": ("Other batches", "Look at the loader: its sampler, its batch size, what is shuffled."),
    "shuffle": ("The shuffle is repeated", "Look for a generator that each epoch makes or seeds, or no `set_epoch`."),
    "setting": ("Another optimizer setting", "Look at what the optimizer is made with, and at its scheduler."),
    "draw": ("Other random numbers", "Look for a line that draws random numbers on one side only."),
    "apart": ("The ranks are not alike", "Look for what is a rank's own: its number, the time, an unseeded generator."),
    "scale": ("The update has another size", "Look for gradients or losses that are averaged twice, or not at all."),
    "loss": ("Another loss", "Look at what goes into the loss, and whether it is reduced by hand."),
    "update": ("Other gradients", "Look for a layer that mixes the samples of a batch, or a loss that is reduced."),
    "gradient": ("Gradients of another size", "Look for gradients or losses that are averaged twice, or not at all."),
    "rounding": ("Rounding that training amplifies", "Compare fewer steps, or in float64."),
    "printed": ("Other output", "Look for a number of one rank's rows, or one that is reduced by hand."),
    "keys": ("A checkpoint with other keys", "Look at what is saved: the model, or its `.module`."),
    "file": ("A file with other contents", "Look at what the file holds: a rank's own value, or the time."),
}


class Shown(NamedTuple):
    """A finding for a reader. `code` are lines of the script around `at`: number, text, whether it is the one."""

    title: str
    finding: Finding
    hint: str
    code: Sequence[tuple[int, str, bool]] = ()


class File(NamedTuple):
    """A file that was written, and where it differs."""

    name: str
    result: str
    places: Sequence[str] = ()
    more: int = 0


class Printed(NamedTuple):
    """A line of output (from 1); of those that differ, both."""

    number: int
    original: str | None
    converted: str | None
    differs: bool


def shown(finding: Finding, comparison: Comparison) -> Shown:
    """A finding with the line of the script where it is seen."""
    title, hint = KINDS.get(finding.kind, (finding.kind, ""))
    return Shown(title, finding, hint, _code(finding.at, comparison) if finding.at else ())


def _code(at: str, comparison: Comparison) -> Sequence[tuple[int, str, bool]]:
    name, _, number = at.rpartition(":")
    path = Path(os.path.normpath(comparison.original.work / name))
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # the script has removed it
        return ()
    first = max(1, int(number) - _AROUND)
    return [(n, text, n == int(number)) for n, text in enumerate(lines[first - 1 : int(number) + _AROUND], start=first)]


def files(comparison: Comparison) -> Sequence[File]:
    """All files that either side wrote; those that differ first."""
    wrong: dict[str, list[str]] = {}
    for each in comparison.wrong_files:
        by = "" if math.isinf(each.relative) else f": {each.relative:.1e}"
        wrong.setdefault(each.file, []).append(f"{each.where}{by}")
    found = []
    for name, where in wrong.items():
        result = "1 place differs" if len(where) == 1 else f"{len(where)} places differ"
        found.append(File(name, result, where[:_PLACES], max(0, len(where) - _PLACES)))
    return [*found, *(File(name, "the same") for name in comparison.original.files() if name not in wrong)]


def output(comparison: Comparison, most: int) -> Sequence[Printed]:
    """The first `most` lines that the original printed, and those that differ."""
    wrong: Mapping[int, object] = {line.line: line for line in comparison.wrong_lines}
    sides = comparison.original.stdout.splitlines(), comparison.converted.stdout.splitlines()
    found = []
    for index in range(max(map(len, sides))):
        differs = index + 1 in wrong
        if index < most or differs:
            texts = [side[index] if index < len(side) else None for side in sides]
            found.append(Printed(index + 1, texts[0], texts[1], differs))
    return found
