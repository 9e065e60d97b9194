"""Which process does what, in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dp2ddp.convert.page.flow import ALONE, MACHINE, TOLD, Flow, Part


@dataclass(frozen=True)
class Task:
    """One row: what, what process 0 does of it, what the others do, and which lines of the script that is."""

    what: str
    first: str
    others: str
    parts: Sequence[Part] = ()


def tasks(flow: Flow) -> Iterator[Task]:
    """The rows of a script's table."""
    if flow.starts:
        yield Task("Runs the script up to where the processes start", "yes", "each starts there by itself", flow.starts)
    yield Task("Runs every line of the script from there", "yes", "yes")
    shared, whole = ([each for each in flow.loaders if each.whole is one] for one in (False, True))
    if shared:
        yield Task("Loads samples", "its part of each batch", "their parts of it", shared)
    if whole:
        yield Task("Loads samples, with a collate_fn that may mix rows", "whole batches", "whole batches", whole)
    trains = any(link.trains for link in flow.links) or not flow.links
    yield Task("Runs the model forward" + " and backward" * trains, "on its part", "on theirs", flow.models)
    if trains:
        yield Task("Averages the gradients, takes the optimizer's step", "yes", "yes, the same one")
    else:
        yield Task("Gets the outputs for the whole batch", "yes", "yes")
    yield Task("Prints, logs, shows progress", "yes", "are silent")
    yield from _deeds(flow)


def _deeds(flow: Flow) -> Iterator[Task]:
    kinds = (
        (ALONE, "Writes files, reports", "yes", "go on without"),
        (TOLD, "Decides: which files are there, names, the time", "yes", "are told its answer"),
        (MACHINE, "Downloads, unpacks", "first, where it is the machine's first", "once that is there"),
    )
    for who, what, first, others in kinds:
        parts = [deed for deed in flow.deeds if deed.who == who]
        if parts:
            yield Task(what, first, others, parts)
