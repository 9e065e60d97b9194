"""`DataParallel` by star imports and by `getattr`, and where it is named in a way that can't be followed."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options


def test_star_imports_of_torch_are_followed() -> None:
    script = (
        "from torch import *\n"
        "from torch.nn import *\n"
        "from torch.optim import *\n"
        "from torch.utils.data import *\n"
        "manual_seed(0)\n"
        "net = DataParallel(Linear(4, 2), device_ids=[0, 1]).cuda()\n"
        "optimizer = DataParallel(SGD(net.parameters(), 0.1))\n"
        "loader = DataLoader(samples, 3)\n"
        "for x in loader:\n"
        "    print(net(x))\n"
        "save(net.state_dict(), 'net.pt')\n"
    )
    text = convert_source(script, "train.py", Options()).new_text
    assert "ddp.setup()\nmanual_seed(0)\n" in text
    assert "net = ddp.wrap_model(Linear(4, 2)" in text
    assert "optimizer = SGD(net.parameters(), 0.1)\n" in text
    assert "loader = ddp.shard_loader(DataLoader(samples, 3)" in text
    assert "ddp.save(net.state_dict(), 'net.pt')" in text


def test_what_a_star_import_of_an_unknown_package_leaves_is_torchs() -> None:
    script = "from easydl import *\nloader = DataLoader(samples, 3)\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
    text = convert_source(script, "train.py", Options()).new_text
    assert text.endswith("loader = ddp.shard_loader(DataLoader(samples, 3))\nnet = ddp.wrap_model(nn.Linear(4, 2))\n")
    assert not convert_source("from math import *\nnn = make()\n" + script[21:], "train.py", Options()).changed


def test_getattr_of_a_plain_name_is_followed() -> None:
    script = "from torch import nn\nnet = getattr(nn, 'DataParallel')(nn.Linear(4, 2))\n"
    assert "net = ddp.wrap_model(nn.Linear(4, 2)" in convert_source(script, "train.py", Options()).new_text
    script = "from torch import nn\nwrap = getattr(nn, 'DataParallel')\nnet = wrap(nn.Linear(4, 2))\n"
    assert "wrap = ddp.WrappedModel\n" in convert_source(script, "train.py", Options()).new_text


@pytest.mark.parametrize(
    "line",
    [
        "net = importlib.import_module('torch.nn').DataParallel(net)",
        "net = getattr(nn, {'many': 'DataParallel'}[mode])(net)",
    ],
)
def test_what_cant_be_followed_is_named(line: str) -> None:
    done = convert_source(f"import importlib\nfrom torch import nn\n{line}\n", "train.py", Options())
    assert not done.changed
    assert [(note.rule, note.span.start.line) for note in done.notes] == [("DDP016", 3)]
    assert "which can't be told without running it" in done.notes[0].what
