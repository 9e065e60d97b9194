"""What programs are composed of: a catalogue of parts, each with options, of which the first choice is the plainest."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass(frozen=True)
class Part:
    """One part of a program, by its name in a catalogue."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For a spec."""
        return {"name": self.name, **self.options}

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> Part:
        """Out of a spec."""
        return Part(told["name"], {key: value for key, value in told.items() if key != "name"})


@dataclass(frozen=True)
class Kind:
    """What a catalogue knows of a part.

    Attributes:
        make: what it does, called with the options' values.
        role: what it is in a program, such as a loss.
        tags: what it needs or forbids (`spec.fits`).
        choices: each option's values.
    """

    make: Callable[..., Any]
    role: str
    tags: frozenset[str]
    choices: Mapping[str, Sequence[Any]]


class Catalogue:
    """Parts by name."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}

    def add(self, role: str, *tags: str, **choices: Sequence[Any]) -> Callable[[Any], Any]:
        """A decorator that enters a function under its name."""

        def enter(make: Any) -> Any:
            self.kinds[make.__name__] = Kind(make, role, frozenset(tags), choices)
            return make

        return enter

    def draw(self, name: str, rng: random.Random) -> Part:
        """The part with options at random."""
        return Part(name, {key: rng.choice(values) for key, values in self.kinds[name].choices.items()})

    def plain(self, name: str) -> Part:
        """The part with each option's first choice."""
        return Part(name, {key: values[0] for key, values in self.kinds[name].choices.items()})

    def simpler(self, part: Part) -> Iterator[Part]:
        """The part with one option set to its first choice, for each that isn't."""
        for key, values in self.kinds[part.name].choices.items():
            if part.options.get(key, values[0]) != values[0]:
                yield Part(part.name, {**part.options, key: values[0]})

    def tags(self, part: Part) -> frozenset[str]:
        """What the part needs or forbids: its kind's tags, and options' names that are set to True."""
        chosen = {key for key, value in part.options.items() if value is True}
        return self.kinds[part.name].tags | chosen

    def make(self, part: Part, *args: Any) -> Any:
        """Call what the part stands for."""
        return self.kinds[part.name].make(*args, **part.options)

    def of(self, *roles: str) -> list[str]:
        """The names of the parts in these roles."""
        return [name for name, kind in self.kinds.items() if kind.role in roles]


BLOCKS = Catalogue()
SHAPES = Catalogue()
OPTIMIZERS = Catalogue()
