"""What the page of a conversion shows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from dp2ddp.command.terminal import counted
from dp2ddp.convert import diffs
from dp2ddp.convert.job import Request
from dp2ddp.convert.reporting import File, Report, reasons
from dp2ddp.convert.running import how_to_run
from dp2ddp.page.rendering import Line, lines_of_rows
from dp2ddp.project.text_files import STANDARD
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules import Rule, rule

CHANGED, SAME, FOLDED = "changed", "same", "folded"
#: Of so many files the code is shown from the start.
_FEW = 3
#: Unchanged lines that are shown around what matters, and how many more are worth folding.
_AROUND, _FEWEST = 3, 4


class Verdict(NamedTuple):
    """A badge with its colour, the sentence, and what else there is to say at once."""

    badge: str
    color: str
    sentence: str
    more: Sequence[str] = ()


class Section(NamedTuple):
    """Lines of a file that lie together: `CHANGED` with the rules and their reasons, `SAME`, or `FOLDED`: shown on
    demand."""

    kind: str
    lines: Sequence[Line]
    reasons: Sequence[tuple[Rule, str]] = ()


class ToDo(NamedTuple):
    """A note, as something to tick off: `key` is the same on every page with the same note; `place` and `link` say
    where it is, `text` what stands there."""

    key: str
    note: Note
    place: str
    link: str
    text: str


@dataclass(frozen=True)
class Shown:
    """A file on the page: `id` names it in links, `name` is what the page calls it, `is_open` whether code shows."""

    id: str
    name: str
    file: File
    is_open: bool

    @cached_property
    def _lines(self) -> tuple[list[str], list[str]]:
        conversion = self.file.conversion
        return diffs.lines_of(conversion.old_text), diffs.lines_of(conversion.new_text)

    @property
    def _findings(self) -> Sequence[Finding]:
        return [*self.file.conversion.edits, *self.file.conversion.notes]

    @cached_property
    def rows(self) -> list[diffs.Row]:
        """All lines, before and after."""
        return list(diffs.rows(*self._lines))

    @property
    def added(self) -> int:
        """How many lines it has that the original hasn't."""
        return sum(row.new is not None for row in self.rows if not row.same)

    @property
    def removed(self) -> int:
        """How many lines the original has besides."""
        return sum(row.old is not None for row in self.rows if not row.same)

    @property
    def rules(self) -> list[str]:
        """The ids of the rules that say something of it."""
        return sorted({each.rule for each in self._findings})

    @property
    def wanted(self) -> set[int]:
        """The old lines that the page points at."""
        return {each.span.start.line for each in self._findings}

    def sections(self) -> Iterator[Section]:
        """The code before and after; unchanged lines show where they are near to what matters."""
        hunks = diffs.hunks(self.rows, self.file.conversion.edits)
        owner = {row: number for number, hunk in enumerate(hunks) for row in hunk.rows}
        matters = [n for n, row in enumerate(self.rows) if not row.same or row.old in self.wanted]
        near = {n for number in matters for n in range(number - _AROUND, number + _AROUND + 1)}
        for (is_near, hunk), part in groupby(enumerate(self.rows), lambda each: (each[0] in near, owner.get(each[1]))):
            rows = [row for _, row in part]
            lines = lines_of_rows(rows, *self._lines, {n: f"{self.id}-{n}" for n in self.wanted})
            if hunk is not None:
                edits = hunks[hunk].edits
                why = dict.fromkeys((edit.rule, edit.reason) for edit in edits)
                yield Section(CHANGED, lines, [(found, text) for id, text in why if (found := rule(id))])
            else:
                yield Section(SAME if is_near or len(rows) < _FEWEST else FOLDED, lines)

    def todos(self) -> Iterator[ToDo]:
        """Its notes."""
        old, places = self._lines[0], self.file.conversion.places
        for note in self.file.conversion.notes:
            line = note.span.start.line
            text = old[line - 1].strip() if line <= len(old) else ""
            key = hashlib.sha256("\0".join((self.file.name, text, note.rule, note.what)).encode("utf-8", "replace"))
            place = f"{self.name}:{line if places is None else places.of(line)}"
            yield ToDo(f"note:{key.hexdigest()[:20]}", note, place, f"{self.id}-{line}", text)


def of_report(report: Report) -> dict[str, object]:
    """What the template shows of a conversion."""
    request, refused = report.job.request, report.job.outcome.is_refused
    noted = [each for each in report.files if each.conversion.changed or each.conversion.notes]
    shown = [Shown(f"f{n}", report.called(each.name), each, len(noted) <= _FEW) for n, each in enumerate(noted)]
    written = (request.writes or request.output == STANDARD) and not refused
    return {
        "name": _name(request),
        "verdict": _verdict(report, sum(len(each.conversion.notes) for each in noted), written=written),
        "files": shown,
        "todos": [todo for each in shown for todo in each.todos()],
        "refused": refused,
        "steps": list(how_to_run(report)) if report.changed and not refused else (),
        "warnings": [str(each) for each in report.warnings],
        "left_alone": reasons(report),
    }


def _name(request: Request) -> str:
    """What was given; the current folder by its name, as `.` says nothing."""
    names = (os.path.basename(os.path.abspath(each)) if each in (".", "..", "./") else each for each in request.inputs)
    return ", ".join(names)


def _verdict(report: Report, notes: int, *, written: bool) -> Verdict:
    """What became of inputs that could be read; `notes`: how many need a person."""
    if report.job.outcome.is_refused:
        more = "Half a conversion would train something else, so nothing was changed, and nothing was written."
        return Verdict("Not converted", "bad", "It can't be converted as it is.", [more])
    if any(each.conversion.converted_before for each in report.started):
        return Verdict("Converted already", "good", "There is nothing to do: it was converted before.")
    if not report.changed and notes:
        return Verdict("Not converted", "bad", "Nothing was changed. What stands in the way is named below.")
    if not report.changed:
        sentence = (
            "No model is wrapped in nn.DataParallel, so there is nothing to convert: one process runs it, as before."
        )
        return Verdict("Nothing to convert", "plain", sentence)
    changes = sum(len(each.conversion.edits) for each in report.changed)
    todo = f"{counted(notes, 'note')} for a person to look at" if notes else "Nothing is left for a person"
    told = [f"{counted(changes, 'change')} in {counted(len(report.changed), 'file')}. {todo}."]
    if report.left_alone:
        told.append(f"{counted(len(report.left_alone), 'script')} could not be converted and stayed as before.")
    if not written:
        told.append("This is a preview: nothing was written but this page.")
    badge, color = ("Converted", "good") if written else ("Preview", "plain")
    if notes or report.left_alone:
        badge, color = f"{badge}, with open notes" if notes else f"{badge} in part", "warn"
    sentence = (
        "It starts a process for each GPU that it wraps a model for. They train on the original's batches; "
        "the first one alone prints and writes files."
    )
    return Verdict(badge, color, sentence, told)
