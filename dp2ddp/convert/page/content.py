"""What the template shows: files with their stretches, notes, rules, ways to run it, pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.convert.overview import File
from dp2ddp.convert.page import sides
from dp2ddp.convert.page.drawing import Drawing, drawn
from dp2ddp.convert.page.flow import Flow
from dp2ddp.convert.page.stretches import CHANGED, Stretch, stretches
from dp2ddp.convert.page.who import Task, tasks
from dp2ddp.rewrite.edits import Note
from dp2ddp.rules import Rule, all_rules


@dataclass(frozen=True)
class Reason:
    """Why a stretch changed: a rule, what it says of this place, and the lines."""

    rule: Rule
    reason: str
    lines: Sequence[int]


@dataclass(frozen=True)
class ToDo:
    """A note, as something to tick off: `key` is the same on every page with the same note."""

    key: str
    file: Shown
    note: Note
    text: str

    @property
    def line(self) -> int:
        return self.note.span.start.line


@dataclass(frozen=True)
class Shown:
    """A file on the page.

    Attributes:
        id: names it in links.
        file: what became of it.
        old: its original text.
        wanted: lines that the page points at.
        is_open: whether its code is shown from the start.
    """

    id: str
    file: File
    old: str
    wanted: frozenset[int]
    is_open: bool = False

    @cached_property
    def stretches(self) -> list[Stretch]:
        """The code before and after."""
        lines = sides.lines_of(self.old)
        rows = list(sides.rows(lines, sides.lines_of(self.file.conversion.new_text)))
        return stretches(rows, self.file.conversion.edits, self.wanted)

    @cached_property
    def changed_rows(self) -> list[sides.Row]:
        return [row for stretch in self.stretches if stretch.kind == CHANGED for row in stretch.rows]

    @property
    def added(self) -> int:
        """How many lines it has that the original hasn't."""
        return sum(row.new is not None for row in self.changed_rows)

    @property
    def removed(self) -> int:
        return sum(row.old is not None for row in self.changed_rows)

    @property
    def rules(self) -> list[str]:
        """The ids of the rules that say something of it."""
        conversion = self.file.conversion
        return sorted({edit.rule for edit in conversion.edits} | {note.rule for note in conversion.notes})

    def reasons(self, stretch: Stretch) -> list[Reason]:
        """Each reason once."""
        found: dict[tuple[str, str], list[int]] = {}
        for edit in stretch.edits:
            found.setdefault((edit.rule, edit.reason), []).append(edit.span.start.line)
        by_id = {rule.id: rule for rule in all_rules()}
        return [Reason(by_id[rule], reason, sorted(set(lines))) for (rule, reason), lines in found.items()]

    def todos(self) -> Iterator[ToDo]:
        lines = sides.lines_of(self.old)
        for note in self.file.conversion.notes:
            line = note.span.start.line
            text = lines[line - 1].strip() if line <= len(lines) else ""
            key = hashlib.sha256("\0".join((self.file.name, text, note.rule, note.what)).encode("utf-8", "replace"))
            yield ToDo(f"note:{key.hexdigest()[:20]}", self, note, text)


@dataclass
class Folder:
    """A folder of the tree: folders and files in it, by name."""

    folders: dict[str, Folder] = field(default_factory=dict)
    files: dict[str, Shown] = field(default_factory=dict)


def tree(files: Iterable[Shown]) -> Folder:
    """The files in their folders; folders with nothing but one folder in them are joined to it."""
    top = Folder()
    for each in files:
        *parents, name = each.file.name.replace("\\", "/").split("/")
        folder = top
        for parent in parents:
            folder = folder.folders.setdefault(parent or "/", Folder())
        folder.files[name] = each
    return _joined(top)


def _joined(folder: Folder) -> Folder:
    joined: dict[str, Folder] = {}
    for name, inner in folder.folders.items():
        below = _joined(inner)
        while not below.files and len(below.folders) == 1:
            ((more, below),) = below.folders.items()
            name = f"{name.rstrip('/')}/{more}"
        joined[name] = below
    return Folder(joined, folder.files)


@dataclass(frozen=True)
class Picture:
    """A script's flow: wide and narrow, and the same as a table."""

    name: str
    flow: Flow
    wide: Drawing
    narrow: Drawing
    tasks: Sequence[Task]


def picture(flow: Flow, name: str) -> Picture:
    """The picture of a flow of the script that the user calls `name`."""
    return Picture(name, flow, drawn(flow, upright=False), drawn(flow, upright=True), list(tasks(flow)))


@dataclass(frozen=True)
class RuleShown:
    """A rule that has a say on the page: how many changes and notes are its own, and its examples' code."""

    rule: Rule
    changes: int
    notes: int
    examples: Sequence[tuple[str, Sequence[Stretch]]]


def rules_of(files: Sequence[Shown]) -> Iterator[RuleShown]:
    """The rules that changed something, or note something."""
    for rule in all_rules():
        edits = [edit for each in files for edit in each.file.conversion.edits if edit.rule == rule.id]
        notes = [note for each in files for note in each.file.conversion.notes if note.rule == rule.id]
        if edits or notes:
            yield RuleShown(rule, len(edits), len(notes), list(_examples(rule)))


def _examples(rule: Rule) -> Iterator[tuple[str, Sequence[Stretch]]]:
    from dp2ddp.rules_doc import flags_of

    for example in rule.examples:
        title = "Example" if example.after else "An example that is only noted"
        flags = flags_of(example)
        rows = list(sides.rows(sides.lines_of(example.before), sides.lines_of(example.converted)))
        together = f", together with {', '.join(example.also)}" if example.also else ""
        yield f"{title}{f', with {flags}' if flags else ''}{together}", stretches(rows, (), range(len(rows) + 1))


def pointed_at(flows: Sequence[Flow], shown: Mapping[str, str]) -> dict[str, set[int]]:
    """The lines that pictures point at, by the file's name; `shown` has the names by path."""
    found: dict[str, set[int]] = {}
    for flow in flows:
        for part in (*flow.loaders, *flow.models, *flow.deeds, *flow.starts):
            if part.path in shown:
                found.setdefault(shown[part.path], set()).add(part.line)
    return found
