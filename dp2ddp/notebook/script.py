"""A notebook's code cells, one below the other, as a script."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp2ddp.notebook import shown
from dp2ddp.notebook.magics import Plain, plain
from dp2ddp.notebook.notebook import LineMap, Notebook, Place, Remark, read_document
from dp2ddp.source.syntax import shared

#: In a cell's metadata: the script that a converted notebook writes.
MARK, SCRIPT = "dp2ddp", "script"
_WIDEST = 400  # characters: what is longer is an embedded picture


def read(name: str, *, as_script: bool = True) -> Notebook:
    """Reads a notebook.

    Args:
        name: its path, as the user gave it.
        as_script: the script will run without the notebook; else it goes back into it.

    Raises:
        BadInput: no notebook that can be read, or a line that can't be put in a script.
    """
    path = Path(name)
    content = read_document(path, name)
    for index, cell in enumerate(content["cells"]):
        if cell["metadata"].get(MARK) == SCRIPT:
            return _converted(name, content, index)
    made = _Script(name, as_script=as_script)
    made.enter(content["cells"])
    text = "\n".join(made.lines) + "\n"
    return Notebook(
        name, path, text, places=LineMap(made.places), remarks=made.remarks, document=content, kept=made.kept
    )


def _converted(name: str, content: Any, index: int) -> Notebook:
    """A notebook that was converted: the script that it writes."""
    _, _, text = content["cells"][index]["source"].partition("\n")
    places = [Place(index + 1, line) for line in range(2, text.count("\n") + 3)]
    return Notebook(name, Path(name), text, places=LineMap(places), document=content)


@dataclass(frozen=True)
class _Cell:
    """A code cell in Python, and its syntax tree."""

    index: int
    plain: Plain
    tree: ast.Module

    @property
    def number(self) -> int:
        return self.index + 1


class _Script:
    """The lines of the script, each with its place."""

    def __init__(self, name: str, *, as_script: bool) -> None:
        self.name = name
        self.as_script = as_script
        self.lines: list[str] = []
        self.places: list[Place] = []
        self.remarks: list[Remark] = []
        self.kept: dict[int, Sequence[str]] = {}
        self._future: list[str] = []

    def enter(self, cells: Sequence[Any]) -> None:
        read = {index: self._read(index, cell) for index, cell in enumerate(cells) if _is_code(cell)}
        stem = re.sub(r"\W+", "_", Path(self.name).stem)
        names = shown.Names(stem)
        for each in read.values():
            names.enter(each.tree)
        for index, cell in enumerate(cells):
            if index in read:
                self._code(read[index], names)
            elif cell["cell_type"] == "markdown" and self.as_script:
                self._text(index, cell["source"])
        self._head({module for each in read.values() for module in each.plain.imports})
        self._order(cells)

    def _read(self, index: int, cell: Any) -> _Cell:
        name = self._cell_name(index)
        found = plain(_normal(cell["source"]), name, as_script=self.as_script)
        return _Cell(index, found, shared("\n".join(found.lines), name))

    def _cell_name(self, index: int) -> str:
        return f"{self.name}:cell {index + 1}"

    def _code(self, cell: _Cell, names: shown.Names) -> None:
        if cell.tree.body:
            self.kept[cell.index] = cell.plain.kept
        done = shown.rewrite(cell.plain.lines, cell.tree, self._cell_name(cell.index), names)
        self._future += done.future
        if not (cell.tree.body or self.as_script):
            return
        self._begin(f"# %% cell {cell.number}", Place(cell.number, 1))
        before = len(self.lines)
        remarks = sorted([*cell.plain.remarks, *done.remarks], key=lambda each: each.line)
        self.remarks += [Remark(before + each.line, each.what, each.todo, each.kept) for each in remarks]
        last = len(cell.plain.lines)
        while done.lines and not done.lines[-1].strip():
            done.lines.pop()
        for line, text in enumerate(done.lines, start=1):
            self._add(text, Place(cell.number, min(line, last)))

    def _text(self, index: int, source: str) -> None:
        lines = [line for line in _normal(source).strip().split("\n") if len(line) <= _WIDEST]
        if not any(lines):
            return
        self._begin("# %% [markdown]", Place(index + 1, 1))
        for number, line in enumerate(lines, start=1):
            self._add(f"# {line}".rstrip(), Place(index + 1, number))

    def _begin(self, title: str, place: Place) -> None:
        if self.lines:
            self._add("", place)
        self._add(title, place)

    def _add(self, line: str, place: Place) -> None:
        self.lines.append(line)
        self.places.append(place)

    def _head(self, modules: set[str]) -> None:
        """What has to stand above all cells."""
        future = list(dict.fromkeys(self._future))
        head = [f"# The code of {Path(self.name).name}; what only the notebook needs is left out, as a comment."]
        head += [*future, *(f"import {module}" for module in sorted(modules)), ""]
        self.lines[:0] = head
        self.places[:0] = [self.places[0] if self.places else Place(1, 1)] * len(head)
        self.remarks = [Remark(len(head) + each.line, each.what, each.todo, each.kept) for each in self.remarks]

    def _order(self, cells: Sequence[Any]) -> None:
        """Says where the cells were last run in another order than they stand."""
        latest = 0
        for index, cell in enumerate(cells):
            count = cell.get("execution_count") if index in self.kept else None
            if count and count < latest:
                line = next(n for n, place in enumerate(self.places, start=1) if place.cell == index + 1 and n > 1)
                what = "this cell was run before one above it; the script runs from top to bottom"
                todo = "check that it still means the same"
                self.remarks.append(Remark(line, what, todo))
                return
            latest = max(latest, count or 0)


def _is_code(cell: Any) -> bool:
    return cell["cell_type"] == "code" and bool(cell["source"].strip())


def _normal(source: str) -> str:
    return re.sub(r"\r\n?", "\n", source)
