"""The shapes in which real scripts wrap models: parts, branches, factories, lists."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_HEAD = "import torch\nimport torch.nn as nn\nfrom torch.utils.data import DataLoader\n"
_LOOP = """
loader = DataLoader(data, 4)
for x, y in loader:
    nn.functional.cross_entropy(net(x), y).backward()
"""


def converted(body: str, *, loop: str = _LOOP) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body).lstrip("\n") + loop, "train.py", Options())


# Each with the line that it becomes.
VALUES = {
    "another name": ("wrap = nn.DataParallel\nnet = wrap(nn.Linear(4, 2))\n", "wrap = ddp.WrappedModel"),
    "partial": (
        "from functools import partial\nwrap = partial(nn.DataParallel, dim=0)\nnet = wrap(nn.Linear(4, 2))\n",
        "wrap = partial(ddp.WrappedModel, dim=0)",
    ),
    "map": (
        "nets = list(map(nn.DataParallel, [nn.Linear(4, 2)]))\nnet = nets[0]\n",
        "nets = list(map(ddp.WrappedModel, [nn.Linear(4, 2)]))",
    ),
    "a table": (
        'wrappers = {"dp": nn.DataParallel}\nnet = wrappers["dp"](nn.Linear(4, 2))\n',
        'wrappers = {"dp": ddp.WrappedModel}',
    ),
    "arguments in a list": ("net = nn.DataParallel(*arguments)\n", "net = ddp.wrap_model(*arguments)"),
    "a class with properties": (
        "class Mine(nn.DataParallel):\n    @property\n    def layers(self):\n        return self.module.layers\n"
        "net = Mine(nn.Linear(4, 2))\n",
        "class Mine(ddp.WrappedModel):",
    ),
}


@pytest.mark.parametrize("shape", VALUES)
def test_the_class_itself_is_handed_on(shape: str) -> None:
    body, line = VALUES[shape]
    conversion = converted(body)
    assert line in conversion.new_text.splitlines()
    assert conversion.new_text.index("ddp.setup()") < conversion.new_text.index("net = ")
    assert "ddp.shard_loader(DataLoader(data, 4))" in conversion.new_text
    assert not conversion.notes


@pytest.mark.parametrize(
    "given", ["net, device_ids=[0,  # the first\n 1]", "net, [0, 2], output_device=2", "net, dim=1", "net, **options"]
)
def test_arguments_stay_as_they_are(given: str) -> None:
    new = converted(f"net = nn.DataParallel({given}).cuda()\n").new_text
    assert f"\nddp.setup()\nnet = ddp.wrap_model({given}).cuda()\n" in new


@pytest.mark.parametrize(
    "body",
    [
        "ddp = nn.Linear(4, 2)\nnet = nn.DataParallel(ddp, device_ids=ddp.ids)\n",
        "ddp.net = nn.DataParallel(ddp.net, ddp.ids)\n",
        "def run(ddp):\n    torch.save(ddp.net, f'{ddp.name}')\n    return nn.DataParallel(ddp.net)\n",
    ],
)
def test_a_variable_of_the_runtime_s_short_name_stays(body: str) -> None:
    expected = body.replace("nn.DataParallel", "dp2ddp_runtime.wrap_model").replace("torch.save", "dp2ddp_runtime.save")
    done = converted(body, loop="ddp.loader = DataLoader(\n    data\n)\n").new_text
    assert "import dp2ddp_runtime\n" in done
    assert expected in done
    assert done.endswith(
        "ddp.loader = DataLoader(\n    data\n)\nddp.loader = dp2ddp_runtime.shard_loader(ddp.loader)\n"
    )


REFUSED = {
    "a class with its own scatter": (
        "class Mine(nn.DataParallel):\n    def scatter(self, *args):\n        pass\nnet = Mine(nn.Linear(4, 2))\n",
        "`Mine` changes how `DataParallel` works (`scatter`)",
    ),
    "a class with a second base": (
        "class Mine(Other, nn.DataParallel):\n    pass\nnet = Mine(nn.Linear(4, 2))\n",
        "`Mine` derives from more than `DataParallel`",
    ),
    "a method of the class": (
        "net = nn.DataParallel(nn.Linear(4, 2))\nnn.DataParallel.forward(net, 1)\n",
        "`nn.DataParallel.forward` reaches into `DataParallel`",
    ),
    "another library's class": (
        "from encoding.parallel import DataParallelModel\nnet = DataParallelModel(nn.Linear(4, 2))\n",
        "`DataParallelModel` comes from `encoding.parallel`, no part of this program",
    ),
    "the class exchanged": (
        "nn.DataParallel = Other\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
        "`DataParallel` itself",
    ),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_what_changes_data_parallel_itself_is_left_alone(shape: str) -> None:
    body, what = REFUSED[shape]
    conversion = converted(body)
    assert not conversion.changed
    assert [(note.rule, note.what.startswith(what)) for note in conversion.notes] == [("DDP016", True)]


@pytest.mark.parametrize("given", ["net, x, range(2)", "net, *xs", "net, x, **options", "*args"])
@pytest.mark.parametrize("way", ["import torch.nn.parallel as P", "from torch.nn import parallel as P"])
def test_data_parallel_keeps_its_arguments(way: str, given: str) -> None:
    new = convert_source(f"{way}\ny = P.data_parallel({given})\n", "train.py", Options()).new_text
    assert new == f"{way}\nimport dp2ddp_runtime as ddp\n\nddp.setup()\ny = ddp.data_parallel({given})\n"
