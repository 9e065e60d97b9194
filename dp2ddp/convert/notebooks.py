"""Notebooks among what is converted: read as scripts, and written as scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dp2ddp.convert.pipeline import Conversion
from dp2ddp.notebook import notebook
from dp2ddp.notebook.notebook import Notebook, is_notebook
from dp2ddp.project import text_files, wrapcalls
from dp2ddp.project.text_files import TextFile
from dp2ddp.rewrite.edits import Note
from dp2ddp.source.spans import Span

if TYPE_CHECKING:
    from dp2ddp.project.tree import Tree

#: What stands in a rule's place where a note is about a notebook's own lines.
NOTEBOOK = "notebook"


def read(name: str) -> TextFile:
    """Reads a script, or a notebook as one.

    Raises:
        BadInput: as `text_files.read`, and as `notebook.read`.
    """
    return notebook.read(name) if is_notebook(name) else text_files.read(name)


def with_places(conversion: Conversion, source: TextFile) -> Conversion:
    """The conversion of a notebook's script, with the places of its lines in the notebook, and notes on these."""
    if not isinstance(source, Notebook):
        return conversion
    notes = [
        Note(NOTEBOOK, Span.of(each.line, 0, each.line, 1), each.what, each.todo)
        for each in source.remarks
        if conversion.changed
    ]
    return replace(
        conversion, notes=sorted([*conversion.notes, *notes], key=lambda note: note.span), places=source.places
    )


def wrapping(tree: Tree) -> Iterator[str]:
    """The paths of a directory's notebooks that name `DataParallel`."""
    for path in tree.files:
        if is_notebook(path) and wrapcalls.mentions(text_files.read_bytes(tree.root / path, path)):
            yield path
