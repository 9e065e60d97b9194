"""What a mistake is: a conversion in which a text, found once, is replaced, and what is to be said of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .bases import BASES, converted


@dataclass(frozen=True)
class Mistake:
    """A conversion that is wrong, and what `verify` has to say of it. All but `name` is known beforehand.

    Attributes:
        kind: what sort of mistake.
        script: into which base it is planted.
        edits: texts that the conversion has exactly once, and what they become.
        step: the first optimizer step, from 1, whose update differs; None where training is the same, and output or
            files differ.
        seen: a step before that one, at which its cause can be seen already (a setting of the optimizer, a sample).
        words: the cause has to have one of them, at a word's beginning.
        fails: ranks part ways, so that the script ends with an error; to say that it could not run is right, too.
        number: of those of its kind in its script.
    """

    kind: str
    script: str
    edits: tuple[tuple[str, str], ...]
    step: int | None
    seen: int | None = None
    words: tuple[str, ...] = ()
    fails: bool = False
    number: int = 0

    @property
    def name(self) -> str:
        """How it is called in lists."""
        return f"{self.kind}/{self.script}" + (f"/{self.number + 1}" if self.number else "")

    @property
    def augmented(self) -> bool:
        """Whether samples are augmented in worker processes."""
        return BASES[self.script].loading == "workers"

    def text(self) -> str:
        """The conversion with the mistake.

        Raises:
            AssertionError: a text to replace isn't there, or more than once; or the outcome doesn't parse.
        """
        text = converted(self.script)
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.name}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        ast.parse(text)
        return text

    def is_at(self, step: int | None) -> bool:
        """Whether a finding of this step is at the right one."""
        if self.step is None or step is None:
            return self.step is step
        return (self.seen or self.step) <= step <= self.step

    def is_named(self, cause: str) -> bool:
        """Whether a cause has one of the words."""
        return any(re.search(rf"(?<!\w){re.escape(word)}", cause, re.IGNORECASE) for word in self.words)


def plant(
    script: str, old: str, new: str, step: int | None, *more: tuple[str, str], seen: int | None = None
) -> Mistake:
    """A mistake in a script; see `kind`, which completes it."""
    return Mistake("", script, ((old, new), *more), step, seen)


def kind(name: str, words: str, *planted: Mistake, fails: bool = False) -> Iterator[Mistake]:
    """Mistakes of one kind.

    Args:
        words: that name it, with commas between them.
    """
    met: dict[str, int] = {}
    for each in planted:
        number = met[each.script] = met.get(each.script, -1) + 1
        named = tuple(word.strip() for word in words.split(","))
        yield replace(each, kind=name, words=named, fails=fails, number=number)
