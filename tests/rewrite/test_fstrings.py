"""Edits inside f-strings: valid from Python 3.9 on."""

from __future__ import annotations

import ast

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = "from datetime import datetime\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
_B = "ddp.broadcast(datetime.now())"
_N = "datetime.now()"

#: The line, and what becomes of it.
LINES = [
    (f'print(f"{{{_N}:3d}}")', 'print(f"{ddp.broadcast(datetime.now()):3d}")'),
    (f"print(f'''{{{_N}}} and\n{{{_N}}}''')", f"print(f'''{{{_B}}} and\n{{{_B}}}''')"),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_expressions_in_f_strings_are_edited(line: str, expected: str) -> None:
    new = convert_source(f"{_HEAD}{line}\n", "train.py", Options()).new_text
    ast.parse(new)
    assert new.endswith(f"{expected}\n"), new
