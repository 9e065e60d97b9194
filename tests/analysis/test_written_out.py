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
    "the tutorial's": """
        def run(net, x, ids, out):
            replicas = nn.parallel.replicate(net, ids)
            inputs = nn.parallel.scatter(x, ids)
            replicas = replicas[:len(inputs)]
            outputs = nn.parallel.parallel_apply(replicas, inputs)
            return nn.parallel.gather(outputs, out)
        run(nn.Linear(4, 2), torch.ones(8, 4), [0, 1], 0)
        """,
    "in one expression": """
        def run(net, x, ids):
            return gather(parallel_apply(replicate(net, ids), scatter(x, ids)), ids[0])
        run(nn.Linear(4, 2), torch.ones(8, 4), [0, 1])
        """,
    "a method's": """
        class Net(nn.Module):
            def forward(self, x):
                if len(self.ids) > 1:
                    modules = replicate(self.body, self.ids)
                    parts = scatter(x, self.ids)
                    outputs = parallel_apply(modules, parts)
                    x = gather(outputs, self.ids[0])
                return x
        """,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_forward_that_is_written_out_becomes_a_call(shape: str) -> None:
    conversion = converted(SHAPES[shape])
    assert not conversion.refused
    body = conversion.new_text.partition("parallel_apply, replicate, scatter")[2]
    assert body.count("ddp.data_parallel(") == 1
    assert not any(f"{name}(" in body for name in ("replicate", "scatter", "parallel_apply", "gather"))


OTHERS = {
    "the outputs are looked at apart": """
        outputs = parallel_apply(replicas, inputs)
        print(len(outputs))
        return gather(outputs, 0)
        """,
    "they are summed": """
        outputs = parallel_apply(replicas, inputs)
        return sum(outputs)
        """,
    "with keyword arguments": """
        outputs = parallel_apply(replicas, inputs, kwargs)
        return gather(outputs, 0)
        """,
    "the replicas are kept": """
        outputs = parallel_apply(replicas, inputs)
        net.replicas = replicas
        return gather(outputs, 0)
        """,
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_does_more_is_refused(other: str) -> None:
    steps = "replicas = replicate(net, [0, 1])\ninputs = scatter(x, [0, 1])\n" + textwrap.dedent(OTHERS[other]).strip()
    function = "def run(net, x, kwargs):\n" + textwrap.indent(steps, "    ")
    conversion = converted(f"{function}\nrun(nn.Linear(4, 2), torch.ones(8, 4), None)\n")
    assert conversion.refused
    assert "copies a model onto several GPUs by itself (`" in conversion.notes[0].what
