"""How it went, as tables, and as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .planted import Mistake
from .trial import AGREE, DIFFER, FAILED, Said


@dataclass(frozen=True)
class Judged:
    """A mistake, and what was said of it."""

    mistake: Mistake
    said: Said

    @property
    def found(self) -> bool:
        """Whether nobody would take the conversion for right."""
        fell = self.said.verdict == FAILED and self.said.side == "converted"
        return self.said.verdict == DIFFER or (fell and self.mistake.fails)

    @property
    def at_step(self) -> bool:
        """Whether it was found where it begins; a script that could not run tells of no step."""
        return self.found and (self.said.verdict == FAILED or self.mistake.is_at(self.said.step))

    @property
    def named(self) -> bool:
        """Whether what differs, or the cause, is what was planted."""
        return self.found and self.mistake.is_named(f"{self.said.what} {self.said.cause}")

    @property
    def line(self) -> str:
        """What came of it, in one line."""
        marks = "".join(mark if good else "-" for mark, good in zip("fsn", (self.found, self.at_step, self.named)))
        said, cause = self.said, (self.said.cause.splitlines() or [""])[0]
        at = f"step {said.step or '-'} (right: {self.mistake.step or '-'})"
        return f"{marks} {self.mistake.name}: {said.verdict}, {at}, {said.seconds:.0f} s: {said.what} | {cause}"

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        mistake = asdict(self.mistake)
        judged = {"found": self.found, "right step": self.at_step, "named": self.named}
        return {"name": self.mistake.name, "mistake": mistake, "said": asdict(self.said), **judged}


@dataclass(frozen=True)
class Healthy:
    """A conversion as it was made, and what was said of it."""

    script: str
    seed: int
    said: Said

    @property
    def right(self) -> bool:
        """Whether it was found to be right, which it is."""
        return self.said.verdict == AGREE

    @property
    def line(self) -> str:
        """What came of it, in one line."""
        said = self.said
        what = "" if self.right else f": step {said.step or '-'}, {said.what} | {(said.cause.splitlines() or [''])[0]}"
        return f"{self.script}, seed {self.seed}: {said.verdict}, {said.seconds:.0f} s{what}"

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {"script": self.script, "seed": self.seed, "said": asdict(self.said), "right": self.right}


def of_mistakes(judged: Sequence[Judged]) -> str:
    """A row for each kind, and one for all."""
    kinds = list(dict.fromkeys(each.mistake.kind for each in judged))
    rows = [_row(kind, [each for each in judged if each.mistake.kind == kind]) for kind in kinds]
    parts = [
        ("augmented in workers", [each for each in judged if each.mistake.augmented]),
        ("the others", [each for each in judged if not each.mistake.augmented]),
        ("all", judged),
    ]
    rows += [_row(f"**{name}**", part) for name, part in parts]
    return _table(["kind", "mistakes", "found", "right step", "named", "wrong verdicts"], rows)


def of_healthy(runs: Sequence[Healthy]) -> str:
    """A row for each script, and one for all."""
    scripts = list(dict.fromkeys(each.script for each in runs))
    rows = [_healthy_row(script, [each for each in runs if each.script == script]) for script in scripts]
    return _table(["script", "runs", "agree", "false alarms"], [*rows, _healthy_row("**all**", runs)])


def _row(name: str, part: Sequence[Judged]) -> list[str]:
    counts = [sum(column) for column in zip(*((each.found, each.at_step, each.named) for each in part))] or [0, 0, 0]
    wrong = _counted(each.said.verdict for each in part if not each.found)
    return [name, str(len(part)), *map(str, counts), wrong]


def _healthy_row(name: str, part: Sequence[Healthy]) -> list[str]:
    right = sum(each.right for each in part)
    return [name, str(len(part)), str(right), _counted(each.said.verdict for each in part if not each.right)]


def _counted(verdicts: Iterable[str]) -> str:
    found = list(verdicts)
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in dict.fromkeys(found))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    return "\n".join(_lines(heads, rows, widths))


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for row in [heads, ["-" * width for width in widths], *rows]:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
