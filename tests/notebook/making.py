"""Notebooks for tests."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat import v4

WRAP = "import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))"


def write(path: Path, *cells: str, **metadata: object) -> Path:
    """A notebook at `path`. A cell that begins with "#md " is text, any other code."""
    made = [
        v4.new_markdown_cell(cell[len("#md ") :], id=f"c{number}")
        if cell.startswith("#md ")
        else v4.new_code_cell(cell, id=f"c{number}")
        for number, cell in enumerate(cells, start=1)
    ]
    path.write_text(nbformat.writes(v4.new_notebook(cells=made, metadata=metadata)))
    return path
