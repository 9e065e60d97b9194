"""DDP005 and `collate_fn`: where rows seem to stay apart that is proposed, and done where the user says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_SCRIPT = """
import numpy as np
import torch
import torch.nn as nn
from boxes import Data, loss_of
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

{collate}

loader = DataLoader(Data(), 16, collate_fn={name})
net = nn.DataParallel(nn.Conv2d(3, 4, 3))
for images, boxes in loader:
    loss_of(net(images), boxes).backward()
"""
_STACKS = [
    "def collate(batch):\n    return torch.stack([b[0] for b in batch]), [b[1] for b in batch]",
    "def collate(batch):\n    return tuple(zip(*batch))",
    "def collate(batch):\n    images, boxes = list(zip(*batch))\n    return torch.stack(images, 0), list(boxes)",
    "def collate(batch):\n    x = []\n    for b in batch:\n        x.append(torch.from_numpy(np.array(b[0])).float())\n"
    "    return {'x': torch.stack(x), 'y': [b[1] for b in batch]}",
]
_MIXES = [
    "def collate(batch):\n    return pad_sequence([b[0] for b in batch]), [b[1] for b in batch]",
    "def collate(batch):\n    batch = [b for b in batch if b is not None]\n    return default_collate(batch)",
    "def collate(batch):\n    batch.sort(key=len)\n    return default_collate(batch)",
    "def collate(batch):\n    for i, b in enumerate(batch):\n        b[1][:, 0] = i\n    return tuple(zip(*batch))",
    "def collate(batch):\n    for b in batch:\n        b[1] = len(batch)\n    return tuple(zip(*batch))",
    "def collate(batch):\n    n = 0\n    for b in batch:\n        n += 1\n    return torch.stack(batch), [n]",
    "from boxes import collate",
]


def converted(collate: str, name: str = "collate", *, rows: bool = False) -> Conversion:
    return convert_source(_SCRIPT.format(collate=collate, name=name), "train.py", Options(rows=rows))


@pytest.mark.parametrize(("collate", "seems"), [(each, True) for each in _STACKS] + [(each, False) for each in _MIXES])
def test_what_seems_to_stack_columns_is_proposed_and_nothing_else(collate: str, seems: bool) -> None:
    conversion = converted(collate)
    notes = [note for note in conversion.notes if note.rule == "DDP005"]
    assert len(notes) == seems
    assert all("rows=True" in note.todo for note in notes)
    assert "loader = ddp.shard_loader(DataLoader(Data(), 16, collate_fn=collate))\n" in conversion.new_text


def test_a_lambda_is_read_as_well() -> None:
    assert any(note.rule == "DDP005" for note in converted("", "lambda batch: tuple(zip(*batch))").notes)


def test_in_the_settings_too_but_only_for_a_collate_fn(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.dp2ddp]\nrows = true\n")
    for name, expected in ("collate", True), ("None", False):
        script, output = tmp_path / "train.py", tmp_path / "out.py"
        script.write_text(_SCRIPT.format(collate=_STACKS[0], name=name))
        result = CliRunner().invoke(main, ["convert", str(script), "-o", str(output), "--force"])
        assert result.exit_code == 0, result.output
        assert ("rows=True" in output.read_text()) == expected
