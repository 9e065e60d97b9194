"""`# dp2ddp: ignore[...]`: what is left out becomes a note, what can't be is an error."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options, rule

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPT = """\
import cv2, torch
import torch.nn as nn
from torch.utils.data import DataLoader

net = nn.DataParallel(nn.Linear(4, 2))
loaders = {
    "train": DataLoader(torch.rand(8, 4), 4),
    "test": DataLoader(torch.rand(8, 4), 4),
}
log = cv2.VideoWriter("log.avi")
for name in loaders:
    for x in loaders[name]:
        net(x)
torch.save(net.state_dict(), "net.pt")
"""


def commented(script: str, line: str, comment: str) -> str:
    """The script, with a comment behind the line that begins with `line`."""
    lines = script.split("\n")
    (at,) = [number for number, text in enumerate(lines) if text.strip().startswith(line)]
    lines[at] += f"  # dp2ddp: ignore{comment}"
    return "\n".join(lines)


def convert(script: str) -> Conversion:
    return convert_source(script, "train.py", Options())


def notes(done: Conversion) -> list[tuple[str, int]]:
    return [(note.rule, note.span.start.line) for note in done.notes]


@pytest.mark.parametrize("comment", ["", "[DDP011]", "[ddp011]", "[DDP011] as rank 0 alone gets here", " # why"])
def test_a_line_is_left_to_a_person(comment: str) -> None:
    done = convert(commented(SCRIPT, "log", comment))
    assert f'log = cv2.VideoWriter("log.avi")  # dp2ddp: ignore{comment}\n' in done.new_text
    assert "ddp.save" in done.new_text
    assert notes(done) == [("DDP011", 10)]
    assert done.notes[0].what.startswith("left as it is by `# dp2ddp: ignore")
    assert "DDP011" not in {edit.rule for edit in done.edits}


@pytest.mark.parametrize(
    ("line", "comment", "what"),
    [
        ("log", "[DDP002]", "train.py:10: DDP002 can't be left out (Wrap the model in DistributedDataParallel)"),
        ("net =", "", "train.py:5: DDP002 can't be left out here"),
        ("log", "[DDP0111]", "train.py:10: no rule 'DDP0111'; `dp2ddp rules` lists them"),
        ("log", "[]", "train.py:10: no rule ''; "),
    ],
)
def test_what_can_t_be_left_out_is_bad_input(line: str, comment: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        convert(commented(SCRIPT, line, comment))
    assert str(caught.value).startswith(what)


def test_each_line_of_a_script_can_be_left_out_by_itself() -> None:
    """Whatever is left out is a Python script, with a note for each edit of the line, and no other line is touched."""
    text = (FIXTURES / "mnist_script/train.py").read_text()
    edits = convert(text).edits
    optional = {(e.rule, e.span.start.line) for e in edits if not getattr(rule(e.rule), "essential", True)}
    assert len(optional) > 3
    for rule_id, line in sorted(optional):
        lines = text.split("\n")
        lines[line - 1] += f"  # dp2ddp: ignore[{rule_id}]"
        done = convert("\n".join(lines))
        ast.parse(done.new_text)
        kept = {(e.rule, e.span.start.line) for e in done.edits}
        assert (rule_id, line) in notes(done)
        assert {(e.rule, e.span.start.line) for e in edits} - kept == {(rule_id, line)}
