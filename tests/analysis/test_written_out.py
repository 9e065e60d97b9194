"""DataParallel's forward, written out by hand, as in PyTorch's tutorial."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import torch
import torch.nn as nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter
"""


def converted(body: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body).lstrip("\n"), "train.py", Options())


SHAPES = {
    "the tutorial's": (
        "def run(net, x, ids, out):\n    replicas = nn.parallel.replicate(net, ids)\n"
        "    inputs = nn.parallel.scatter(x, ids)\n    replicas = replicas[:len(inputs)]\n"
        "    outputs = nn.parallel.parallel_apply(replicas, inputs)\n    return nn.parallel.gather(outputs, out)\n"
        "run(nn.Linear(4, 2), torch.ones(8, 4), [0, 1], 0)\n"
    ),
    "of which something is kept that nobody reads": (
        "def run(net, x, ids):\n    r = replicate(net, ids)\n    y = gather(parallel_apply(r, scatter(x, ids)), 0)\n"
        "    kept = r\n    return y\nrun(nn.Linear(4, 2), torch.ones(8, 4), [0, 1])\n"
    ),
    "in one expression": (
        "def run(net, x, ids):\n    return gather(parallel_apply(replicate(net, ids), scatter(x, ids)), ids[0])\n"
        "run(nn.Linear(4, 2), torch.ones(8, 4), [0, 1])\n"
    ),
    "a method's": (
        "class Net(nn.Module):\n    def forward(self, x):\n        if len(self.ids) > 1:\n"
        "            modules = replicate(self.body, self.ids)\n            parts = scatter(x, self.ids)\n"
        "            outputs = parallel_apply(modules, parts)\n            x = gather(outputs, self.ids[0])\n"
        "        return x\n"
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_forward_that_is_written_out_becomes_a_call(shape: str) -> None:
    conversion = converted(SHAPES[shape])
    assert not conversion.refused
    body = conversion.new_text.partition("parallel_apply, replicate, scatter")[2]
    assert body.count("ddp.data_parallel(") == 1
    assert not any(f"{name}(" in body for name in ("replicate", "scatter", "parallel_apply", "gather"))


OTHERS = {
    "the outputs are looked at apart": (
        "outputs = parallel_apply(replicas, inputs)\nprint(len(outputs))\nreturn gather(outputs, 0)\n"
    ),
    "with keyword arguments": "outputs = parallel_apply(replicas, inputs, kwargs)\nreturn gather(outputs, 0)\n",
    "it is read": "o = parallel_apply(replicas, inputs)\ny = gather(o, 0)\nkept = o\nprint(it.kept)\nreturn y\n",
    "the replicas are kept": (
        "outputs = parallel_apply(replicas, inputs)\nnet.replicas = replicas\nreturn gather(outputs, 0)\n"
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_does_more_is_refused(other: str) -> None:
    steps = "replicas = replicate(net, [0, 1])\ninputs = scatter(x, [0, 1])\n" + textwrap.dedent(OTHERS[other]).strip()
    function = "def run(net, x, kwargs):\n" + textwrap.indent(steps, "    ")
    conversion = converted(f"{function}\nrun(nn.Linear(4, 2), torch.ones(8, 4), None)\n")
    assert conversion.refused
    assert "copies a model onto several GPUs by itself (`" in conversion.notes[0].what
