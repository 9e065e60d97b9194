"""What a script does once it is converted, for a picture: loaders that feed models, and who writes what."""

from __future__ import annotations

from dataclasses import dataclass

#: Who does it: every process, process 0 for all, process 0 alone, the first process of each machine.
TOLD, ALONE, MACHINE = "told", "alone", "machine"


@dataclass(frozen=True)
class Part:
    """A loader, a model, or something that is done, by its place in the program.

    Attributes:
        name: as the script calls it.
        detail: the source that makes it, on one line.
        path: the file, relative to the project.
        line: in that file, from 1.
    """

    name: str
    detail: str
    path: str
    line: int


@dataclass(frozen=True)
class Loader(Part):
    """A loader; `whole` if its batches can't be told apart by rows, so that every process loads all of them."""

    whole: bool = False


@dataclass(frozen=True)
class Deed(Part):
    """Something that isn't done by every process alike.

    Attributes:
        what: ``writes``, ``decides``, ``fetches``.
        who: `TOLD`, `ALONE` or `MACHINE`.
        models: the numbers of the models that go into it.
    """

    what: str
    who: str
    models: tuple[int, ...] = ()


@dataclass(frozen=True)
class Link:
    """A loop over the batches of `loader` that calls `model`, both by number; `trains` if it goes backward."""

    loader: int
    model: int
    trains: bool


@dataclass(frozen=True)
class Flow:
    """One script's: its loaders, models, the loops between them, what single processes do, where processes start."""

    entry: str
    loaders: tuple[Loader, ...]
    models: tuple[Part, ...]
    links: tuple[Link, ...]
    deeds: tuple[Deed, ...]
    starts: tuple[Part, ...]
