"""Reductions inside f-strings: valid from Python 3.9 on, and the same text printed."""

from __future__ import annotations

import ast
import sys

import pytest

from dp2ddp import pipeline
from dp2ddp.analysis.source import parse
from dp2ddp.edits import ReplaceExpr, Span
from dp2ddp.errors import BadInput
from dp2ddp.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
loaders = {"train": DataLoader(data, batch_size=16)}
net = nn.DataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i, (x, y) in enumerate(LOADER):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    """
DOUBLE, SINGLE = 'loaders["train"]', "loaders['train']"


def _mean(quote: str) -> str:
    return f"ddp.all_reduce(loss.item(), op={quote}mean{quote}, over=loaders[{quote}train{quote}])"


#: The line, and what becomes of it: `D` and `S` are the reduction in double and in single quotes.
LINES = [
    ('print(f"{loss.item():.3f}")', 'print(f"{S:.3f}")'),
    ("print(f'{loss.item():.3f}')", "print(f'{D:.3f}')"),
    ('print(f"""{loss.item()} and\n{loss.item()}""")', 'print(f"""{S} and\n{S}""")'),
    ("print(f'''{loss.item()}''')", "print(f'''{D}''')"),
    ('print(f"""{\' \'.join([f\'{loss.item()}\'])}""")', 'print(f"""{\' \'.join([f\'{D}\'])}""")'),
    ("print(f\"a\" f'{loss.item()}' '')", "print(f\"a\" f'{D}' '')"),
    ("print(rf\"\\d{'é'} {loss.item()!s:>9}\")", "print(rf\"\\d{'é'} {S!s:>9}\")"),
    ('print(f"{loss.item() = }")', 'print(f"loss.item() = {S!r}")'),
    ('print(f"{loss.item()=:.3f}")', 'print(f"loss.item()={S:.3f}")'),
    ('print(f"{ loss.item()=!s} {2 * i=}")', 'print(f" loss.item()={ S!s} {2 * i=}")'),
]


@pytest.mark.parametrize("loader", [DOUBLE, SINGLE])
@pytest.mark.parametrize(("line", "expected"), LINES)
def test_strings_take_the_quotes_that_are_free(line: str, expected: str, loader: str) -> None:
    new = convert_source(_HEAD.replace("LOADER", loader) + line + "\n", "train.py", Options()).new_text
    ast.parse(new)
    made = expected.replace("D", _mean('"')).replace("S", _mean("'"))
    assert new.endswith(f"    {made}\n"), new


def test_outside_strings_the_loader_is_written_as_in_the_script() -> None:
    new = convert_source(_HEAD.replace("LOADER", SINGLE) + "print(loss.item())\n", "train.py", Options()).new_text
    assert new.endswith(f'print(ddp.all_reduce(loss.item(), op="mean", over={SINGLE}))\n')


def test_where_both_quotes_are_taken_the_line_is_named() -> None:
    line = "print(f\"{', '.join([f'{loss.item():.3f}'])}\")\n"
    with pytest.raises(BadInput, match=r"train.py:14: an f-string inside another one: .* both kinds are taken; change"):
        convert_source(_HEAD.replace("LOADER", DOUBLE) + line, "train.py", Options())


@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_what_python_3_9_misplaces_is_refused_there(quotes: str) -> None:
    source = parse(f"print(f{quotes}a\n {{b}} {quotes})\nprint(f'{{b}}')\n", "train.py")
    spans = [Span.of(2, 2, 2, 3), Span.of(1, 0, 2, 9), Span.of(3, 9, 3, 10)]
    edits = [ReplaceExpr("DDP007", span, "", "c") for span in spans]
    with pytest.raises(BadInput, match="train.py:2: Python 3.9 does not tell .* run dp2ddp with Python 3.10"):
        pipeline._refuse_misplaced(source, edits)
    pipeline._refuse_misplaced(source, edits[1:])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12's f-strings")
def test_quotes_that_nest_anyway_do_no_harm() -> None:
    line = 'print(f"{", ".join([f"{loss.item():.3f}"])}")\n'
    new = convert_source(_HEAD.replace("LOADER", DOUBLE) + line, "train.py", Options()).new_text
    assert _mean("'") in new
