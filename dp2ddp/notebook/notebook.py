"""A notebook: its code cells, one below the other, as a script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.notebook.cell import Cell, Remark
from dp2ddp.project.text_files import TextFile, read_bytes

SUFFIX = ".ipynb"
_WIDEST = 400  # characters: what is longer is an embedded picture
#: What IPython gives to every cell, in a script.
_GIVEN = {"display": "from builtins import print as display", "get_ipython": "get_ipython = lambda: None"}


class Place(NamedTuple):
    """A line of a cell; both count from 1, cells of text included, as ruff counts them."""

    cell: int
    line: int

    def __str__(self) -> str:
        """``cell 3:2``."""
        return f"cell {self.cell}:{self.line}"


@dataclass(frozen=True)
class LineMap:
    """Where each line of a script that was made from a notebook stands there."""

    lines: Sequence[Place]

    def of(self, line: int) -> Place:
        """The place of a line, from 1; lines behind the end are the last one's."""
        return self.lines[min(line, len(self.lines)) - 1]

    def renamed(self, error: BadInput, name: str) -> BadInput:
        """The error about a line of the script, as one about the notebook `name`."""
        if error.line is None:
            return error.renamed(name)
        place = self.of(error.line)
        return BadInput(
            f"{name}:cell {place.cell}", what=error.what, todo=error.todo, line=place.line, column=error.column
        )


@dataclass(frozen=True)
class Notebook(TextFile):
    """A notebook, as a script.

    Attributes:
        text: the script.
        places: where its lines stand in the notebook.
        remarks: what a person has to know about lines of the script.
    """

    places: LineMap = field(default_factory=lambda: LineMap([]))
    remarks: Sequence[Remark] = ()


def is_notebook(name: str) -> bool:
    """Whether a file's name is that of a notebook."""
    return name.endswith(SUFFIX)


def read(name: str) -> Notebook:
    """Reads a notebook.

    Args:
        name: its path, as the user gave it.

    Raises:
        BadInput: no notebook that can be read, or a line that can't be put in a script.
    """
    document = _document(name)
    sources = [re.sub(r"\r\n?", "\n", cell["source"]) for cell in document["cells"]]
    cells = {
        index: Cell(sources[index], f"{name}:cell {index + 1}")
        for index, cell in enumerate(document["cells"])
        if _is_code(cell)
    }
    pyplot = {name for cell in cells.values() for name in _pyplot(cell.tree)}
    for each in cells.values():
        each.show(pyplot)
    _compare_order(document["cells"], {index: cell for index, cell in cells.items() if cell.tree.body})
    lines = _head(Path(name), list(cells.values()))
    places = [Place(min(cells) + 1, 1)] * len(lines)
    remarks: list[Remark] = []
    for index, source in enumerate(sources):
        if index in cells:
            title, own = f"# %% cell {index + 1}", cells[index].lines
            remarks += [each._replace(line=len(lines) + 2 + each.line) for each in sorted(cells[index].remarks)]
        else:
            is_text = document["cells"][index]["cell_type"] == "markdown"
            shown = [line for line in source.strip().split("\n") if is_text and len(line) <= _WIDEST]
            title, own = "# %% [markdown]", [f"# {line}".rstrip() for line in shown if any(shown)]
        if own:
            last = source.count("\n") + 1
            lines += ["", title, *own]
            places += [Place(index + 1, min(max(line, 1), last)) for line in range(-1, len(own) + 1)]
    text = "\n".join(lines) + "\n"
    return Notebook(name, Path(name), text, places=LineMap(places), remarks=remarks)


def _document(name: str) -> Any:
    """The notebook, as nbformat has it, in format 4."""
    import logging
    import warnings

    data = read_bytes(Path(name), name)
    try:
        import nbformat  # slow, and only wanted for notebooks
    except ModuleNotFoundError:
        raise BadInput(name, what="notebooks need nbformat", todo="pip install nbformat") from None

    # What is missing and can be made up (ids of cells), nbformat tells the log and the user: not this command's affair.
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    broken = (ValueError, KeyError, AttributeError, TypeError, RecursionError, nbformat.ValidationError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = nbformat.reads(data.decode("utf-8"), as_version=4)
            nbformat.validate(document)
    except broken as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(name, what=f"no valid notebook: {reason}") from None
    metadata = document["metadata"]
    language = metadata.get("language_info", {}).get("name") or metadata.get("kernelspec", {}).get("language") or ""
    if language.lower() not in ("python", "ipython", "python3", ""):
        raise BadInput(name, what=f"a notebook in {language.lower()}, not in Python")
    if not any(map(_is_code, document["cells"])):
        raise BadInput(name, what="a notebook without code")
    return document


def _is_code(cell: Any) -> bool:
    return cell["cell_type"] == "code" and bool(cell["source"].strip())


def _pyplot(tree: ast.Module) -> Iterator[str]:
    """What a cell calls pyplot."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (a.asname or a.name for a in node.names if f"{package}{a.name}" == "matplotlib.pyplot")


def _head(path: Path, cells: Sequence[Cell]) -> list[str]:
    """What has to stand above all cells."""
    nodes = [node for cell in cells for node in ast.walk(cell.tree)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    own |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    given = {node.id for node in names} - own
    modules = {module for cell in cells for module in cell.modules}
    return [
        f"# The code of {path.name}; what only the notebook needs is left out, as a comment.",
        *dict.fromkeys(line for cell in cells for line in cell.future),
        *(f"import {module}" for module in sorted(modules)),
        *(line for name, line in _GIVEN.items() if name in given),
    ]


def _compare_order(document: Sequence[Any], cells: Mapping[int, Cell]) -> None:
    """Says where the cells were last run in another order than they stand."""
    latest = 0
    for index, cell in cells.items():
        count = document[index].get("execution_count") or latest
        if count < latest:
            what = "this cell was run before one above it; the script runs from top to bottom"
            cell.remarks.append(Remark(0, what, "check that it still means the same"))
            return
        latest = count
