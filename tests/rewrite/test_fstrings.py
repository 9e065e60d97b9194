"""Edits inside f-strings: valid from Python 3.9 on."""

from __future__ import annotations

import ast

import pytest

from dp2ddp.convert import pipeline
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.errors import BadInput
from dp2ddp.rewrite.edits import ReplaceExpr
from dp2ddp.rules import Options
from dp2ddp.source.program import parse
from dp2ddp.source.spans import Span

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


@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_what_python_3_9_misplaces_is_refused_there(quotes: str) -> None:
    source = parse(f"print(f{quotes}a\n {{b}} {quotes})\nprint(f'{{b}}')\n", "train.py")
    spans = [Span.of(2, 2, 2, 3), Span.of(1, 0, 2, 9), Span.of(3, 9, 3, 10)]
    edits = [ReplaceExpr("DDP007", span, "", "c") for span in spans]
    with pytest.raises(BadInput, match=r"train\.py:2: Python 3\.9 does not tell .* run dp2ddp with Python 3\.10"):
        pipeline._refuse_misplaced(source, edits)
    pipeline._refuse_misplaced(source, edits[1:])
