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


@pytest.mark.parametrize("made", ["torch.compile(nn.DataParallel(model))", "nn.DataParallel(torch.compile(model))"])
def test_the_loaders_of_a_compiled_model_are_shared_out(made: str) -> None:
    body = f"model = nn.Linear(4, 2)\nnet = {made}\nnet = torch.compile(net, dynamic=True)\n"
    assert "loader = ddp.shard_loader(DataLoader(data, 4))" in converted(body).new_text


def test_what_may_be_a_model_or_an_optimizer_is_wrapped_as_a_model() -> None:
    body = """
        def load(file, optimizer=None):
            found = {}
            found['optimizer'] = optimizer
            return found
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters())
        if resume:
            net, optimizer = load(resume, optimizer=optimizer)
        net = nn.DataParallel(net)
    """
    assert "\nnet = ddp.wrap_model(net)\n" in converted(body).new_text


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


@pytest.mark.parametrize("test", ["not args.single or args.force", "args.gpu is None", "len(ids) > 1", "False"])
def test_the_start_depends_on_no_condition(test: str) -> None:
    """How many processes there are is known when the model is wrapped."""
    body = f"if {test}:\n    net = nn.DataParallel(net)\n"
    new = converted(f"{body}else:\n    net = nn.DataParallel(net, [0])\n").new_text
    assert f"\nddp.setup()\n{body.replace('nn.DataParallel', 'ddp.wrap_model')}" in new


@pytest.mark.parametrize("more", ["", ", *, nn=nn"])
def test_a_module_that_is_a_parameter_s_default_is_that_module(more: str) -> None:
    script = f"def build(net{more or ', nn=nn'}):\n    return nn.DataParallel(net)\nnet = build(nn.Linear(4, 2))\n"
    assert "    return ddp.wrap_model(net)\n" in converted(script).new_text


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


def test_other_kinds_of_parallelism_are_their_script_s_business() -> None:
    body = """
        from fairscale.nn import ShardedDataParallel
        net = nn.DataParallel(nn.Linear(4, 2))
        if FLAG:
            other = ShardedDataParallel(nn.Linear(4, 2))
        """
    assert "net = ddp.wrap_model(nn.Linear(4, 2)" in converted(body).new_text


def test_annotations_name_the_new_class() -> None:
    body = """
        def keep(net: nn.DataParallel) -> nn.DataParallel:
            same: nn.DataParallel = net
            return same
        net = keep(nn.DataParallel(nn.Linear(4, 2)))
        """
    conversion = converted(body)
    assert "def keep(net: ddp.WrappedModel) -> ddp.WrappedModel:" in conversion.new_text
    assert "    same: ddp.WrappedModel = net" in conversion.new_text


AT_IMPORT = {
    "a class attribute": "class Config:\n    net = nn.DataParallel(nn.Linear(4, 2))\nnet = Config().net\n",
    "a default": "def keep(net=nn.DataParallel(nn.Linear(4, 2))):\n    return net\nnet = keep()\n",
}


@pytest.mark.parametrize("shape", AT_IMPORT)
def test_processes_start_before_what_a_definition_wraps(shape: str) -> None:
    conversion = converted(AT_IMPORT[shape])
    assert conversion.new_text.index("ddp.setup()") < conversion.new_text.index("ddp.wrap_model(")
    assert "ddp.shard_loader(" in conversion.new_text


@pytest.mark.parametrize("given", ["net, x, range(2)", "net, *xs", "net, x, **options", "*args"])
@pytest.mark.parametrize("way", ["import torch.nn.parallel as P", "from torch.nn import parallel as P"])
def test_data_parallel_keeps_its_arguments(way: str, given: str) -> None:
    new = convert_source(f"{way}\ny = P.data_parallel({given})\n", "train.py", Options()).new_text
    assert new == f"{way}\nimport dp2ddp_runtime as ddp\n\nddp.setup()\ny = ddp.data_parallel({given})\n"


def test_what_tells_a_loading_which_classes_there_are_stays() -> None:
    """Checkpoints name the original's class, whoever saved them."""
    safe = "torch.serialization.add_safe_globals([nn.DataParallel])\n"
    assert safe in converted(f"{safe}net = nn.DataParallel(nn.Linear(4, 2))\n").new_text
