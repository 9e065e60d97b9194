"""What programs are composed of: a tree of parts, each with options, of which the first choice is the plainest."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable


@dataclass(frozen=True)
class Kind:
    """What is known of a part.

    Attributes:
        make: what it does, called with the options' values.
        role: what it is in a program, such as a loss.
        tags: what it needs or forbids (`spec.why_not`).
        choices: each option's values.
    """

    make: Callable[..., Any]
    role: str
    tags: frozenset[str]
    choices: Mapping[str, Sequence[Any]]


#: By name.
KINDS: dict[str, Kind] = {}


def add(role: str, *tags: str, **choices: Sequence[Any]) -> Callable[[Any], Any]:
    """A decorator that makes a function a kind of part."""

    def enter(make: Any) -> Any:
        KINDS[make.__name__] = Kind(make, role, frozenset(tags), choices)
        return make

    return enter


def names_of(*roles: str) -> list[str]:
    """The kinds in these roles."""
    return [name for name, kind in KINDS.items() if kind.role in roles]


@dataclass(frozen=True)
class Part:
    """A part of a program: its kind, the options that aren't the plainest ones, and parts of its own."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def __getitem__(self, option: str) -> Any:
        return self.options[option] if option in self.options else KINDS[self.name].choices[option][0]

    @property
    def role(self) -> str:
        """What it is in a program."""
        return KINDS[self.name].role

    @property
    def tags(self) -> frozenset[str]:
        """What it needs or forbids: its kind's tags, and options that are set to True."""
        return KINDS[self.name].tags | {key for key, value in self.options.items() if value is True}

    def of(self, *roles: str) -> list[Part]:
        """Its parts in these roles."""
        return [part for part in self.parts if part.role in roles]

    def make(self, *args: Any) -> Any:
        """Call what the part stands for."""
        kind = KINDS[self.name]
        return kind.make(*args, **{key: self[key] for key in kind.choices})

    def smaller(self) -> Iterator[Part]:
        """The part with something less, or plainer; the largest cuts first."""
        for index, part in enumerate(self.parts):
            before, behind = self.parts[:index], self.parts[index + 1 :]
            yield replace(self, parts=before + behind)
            yield from (replace(self, parts=(*before, less, *behind)) for less in part.smaller())
        for key, choices in KINDS[self.name].choices.items():
            known = self[key] in choices
            for value in choices[: choices.index(self[key]) if known else len(choices)]:
                yield replace(self, options={**self.options, key: value})

    def to_json(self) -> str:
        """One line, from which `from_json` makes the part again."""
        return json.dumps(self, default=lambda part: {"name": part.name, **part.options, "parts": part.parts})

    @staticmethod
    def from_json(text: str) -> Part:
        """The part that `to_json` wrote. What isn't told is the plainest."""

        def read(told: dict[str, Any]) -> Part:
            name, parts = told.pop("name"), tuple(told.pop("parts", ()))
            options = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
            return Part(name, options, parts)

        part: Part = json.loads(text, object_hook=read)
        return part


def drawn(name: str, rng: random.Random, parts: Sequence[Part] = (), **given: Any) -> Part:
    """A part with options at random, but for those that are given."""
    choices = KINDS[name].choices
    options = {key: given[key] if key in given else rng.choice(values) for key, values in choices.items()}
    return Part(name, options, tuple(parts))
