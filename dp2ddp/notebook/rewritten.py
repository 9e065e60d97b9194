"""A notebook that writes its converted script to a file, and starts it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dp2ddp.notebook.notebook import Notebook, write_document
from dp2ddp.notebook.script import MARK, SCRIPT

_ORIGINAL, _START, _FIGURES = "original", "start", "figures"


def script_name(name: str) -> str:
    """The file to which the notebook `name` writes its script."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem) + "_ddp.py"


def rewritten(notebook: Notebook, text: str) -> bytes:
    """The notebook's file with the script `text` in it.

    Code that is in the script is kept, as text, where it stood; commands of the notebook (`!pip install`) go on being
    run. Behind the last of it come cells that write the script, start it, and show the figures that it saved.
    """
    content = copy.deepcopy(notebook.document)
    cells = content["cells"]
    for cell in cells:
        if cell["metadata"].get(MARK) == SCRIPT:  # converted before
            first, _, _ = cell["source"].partition("\n")
            cell["source"] = f"{first}\n{text}"
            return write_document(content)
    last = max(notebook.kept, default=len(cells) - 1)
    new: list[Any] = []
    for index, cell in enumerate(cells):
        new += _kept(cell, index, notebook.kept[index]) if index in notebook.kept else [cell]
        new += _added(script_name(notebook.name), text) if index == last else []
    if (content["nbformat"], content["nbformat_minor"]) < (4, 5):  # cells have ids since
        for cell in new:
            cell.pop("id", None)
    content["cells"] = new
    return write_document(content)


def _kept(cell: Any, index: int, commands: Sequence[str]) -> Iterator[Any]:
    """An original cell's commands, as a cell, and its source, as text."""
    from nbformat import v4

    name = cell.get("id") or f"cell-{index + 1}"
    if commands:
        yield v4.new_code_cell("\n".join(commands), id=f"{name}-commands"[-64:])
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", cell["source"] + "``")))
    metadata = {**cell["metadata"], MARK: _ORIGINAL}
    yield v4.new_markdown_cell(f"{fence}python\n{cell['source'].rstrip()}\n{fence}", id=name, metadata=metadata)


def _added(name: str, text: str) -> Iterator[Any]:
    from nbformat import v4

    yield v4.new_code_cell(f"%%writefile {name}\n{text}", id="dp2ddp-script", metadata={MARK: SCRIPT})
    yield v4.new_code_cell(f"!python {name}", id="dp2ddp-start", metadata={MARK: _START})
    figures = list(dict.fromkeys(re.findall(r'savefig\("(\w+_figure_\d+\.png)"\)', text)))
    if figures:
        shown = f"from IPython.display import Image, display\n\nfor name in {figures!r}:\n    display(Image(name))"
        yield v4.new_code_cell(shown, id="dp2ddp-figures", metadata={MARK: _FIGURES})
