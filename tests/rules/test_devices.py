"""Device indices: whose methods `.cuda(...)` and `.to(...)` are."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import torch
import torch.nn as nn
from elsewhere import Base
class Mover:
    def cuda(self, *items):
        return [item.cuda(gpus[0]) for item in items]
class Holder:
    def cuda(self, index):
        self.x = self.x.cuda(index)
        return self
    def to(self, device, *more):
        return self.x.to(device)
class Net(nn.Linear):
    def cuda(self, *devices):
        return super().cuda(devices[0])
class Strange(Base):
    def move(self, x, y, gpu):
        BODY
        return x, y
class Plain:
    def __init__(self):
        self.net = nn.Linear(4, 2)
gpus = [0, 1]
movers = [Mover, Holder, Strange.move]
net = nn.DataParallel(Net(4, 2), gpus)
"""


def converted(line: str, inside: str = "pass") -> str:
    script = _HEAD.replace("BODY", inside) + line + "\n"
    new = convert_source(script, "train.py", Options(select=frozenset({"DDP004"}))).new_text
    return new.replace("import dp2ddp_runtime as ddp\n", "")


def test_a_method_that_the_script_defines_keeps_its_arguments() -> None:
    after = textwrap.dedent(converted("x, y = Mover().cuda(x, y)\nHolder().cuda(0)\nNet(4, 2).cuda(0, 1)"))
    assert after.endswith("x, y = Mover().cuda(x, y)\nHolder().cuda(0)\nNet(4, 2).cuda(0, 1)\n")
    # What these methods do with an index is found inside of them.
    assert "return [item.cuda(ddp.device()) for item in items]" in after
    assert "self.x = self.x.cuda(index)" in after  # 0
    assert "return super().cuda()" in after


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # A tensor, a module: the current device is this rank's.
        ("net.module.weight.cuda(1)", "net.module.weight.cuda(ddp.device())"),
        ("nn.Linear(4, 2).cuda(gpus[0])", "nn.Linear(4, 2).cuda()"),
        ("(nn.Linear(4, 2)  # c\n .cuda(gpus[0], (True)))", "(nn.Linear(4, 2)  # c\n .cuda(non_blocking=(True)))"),
        ("Plain().net.cuda(1)", "Plain().net.cuda()"),
        # What may be a Mover or a Holder: as many arguments as before.
        ("batch = batch.cuda(gpus[0])", "batch = batch.cuda(ddp.device())"),
        ("batch = batch.cuda(args.gpu, True)", "batch = batch.cuda(ddp.device(), True)"),
        ("batch = mover.cuda(x)", "batch = mover.cuda(x)"),
        ("batch = mover.cuda(x, y)", "batch = mover.cuda(x, y)"),
        ("batch = mover.cuda(*gpus)", "batch = mover.cuda(*gpus)"),
        # One move within another.
        ("net(x.to('cuda:1')).to(1)", "net(x.to(ddp.device())).to(ddp.device())"),
        ("nn.Linear(4, 2, device='cuda:1').cuda(1)", "nn.Linear(4, 2, device=ddp.device()).cuda()"),
        ("torch.cuda.synchronize(1)", "torch.cuda.synchronize(ddp.device())"),
        # An index for a parameter that means a device.
        ("Holder().to(1, x)", "Holder().to(ddp.device(), x)"),
        ("Holder().to(x, 1)", "Holder().to(x, 1)"),
        # A tensor lives where the rank's others do. (An option may be called as what tensors have.)
        (
            "def run(h):\n    torch.cuda.set_device(h.device)\n    return x.to(h.device), h.dim\nrun(x)",
            "def run(h):\n    torch.cuda.set_device(ddp.device())\n    return x.to(ddp.device()), h.dim\nrun(x)",
        ),
        ("def run(h):\n    torch.cuda.set_device(h.device)\n    return x.to(h.device), h.size(1)\nrun(x)",) * 2,
        (
            "class Own:\n    def size(self): self.device = 3\ndef run(o):\n    torch.cuda.set_device(o.device)\n"
            "    o.size()\nrun(Own())",
            "class Own:\n    def size(self): self.device = 3\ndef run(o):\n    torch.cuda.set_device(ddp.device())\n"
            "    o.size()\nrun(Own())",
        ),
        # The first GPU is the only one that a rank sees.
        *((line, line) for line in ("x.cuda(0)", "x.to('cuda:0').to(0)", "torch.cuda.set_device('cuda:0')")),
        *((line, line) for line in ("torch.device('cuda', 0)", "x.cuda(device=0)", "Holder().to(0, x)")),
    ],
)
def test_what_may_be_the_script_s_own_keeps_the_number_of_its_arguments(line: str, expected: str) -> None:
    assert converted(line).endswith(f"\n{expected}\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [("x, y = self.cuda(x, y)", "x, y = self.cuda(x, y)"), ("self.cuda(gpu)", "self.cuda(ddp.device())")],
)
def test_a_method_of_an_unknown_base_may_be_its_own(line: str, expected: str) -> None:
    assert f"\n        {expected}\n" in converted("pass", inside=line)


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("for i in range(2):\n    parts[i] = parts[i].cuda(gpus[i])", "`parts[i].cuda(gpus[i])`"),
        ("a, b = x.cuda(0), y.cuda(1)", "0, 1"),
        ("for i in range(2):\n    parts[i] = parts[i].cuda(gpus[0])", None),
        ("part = part.cuda(gpus[rank])", None),
    ],
)
def test_what_is_spread_over_several_gpus_is_noted(line: str, noted: str | None) -> None:
    script = "import torch.nn as nn\ngpus = [0, 1]\nnet = nn.DataParallel(nn.Linear(4, 2), gpus)\n" + line + "\n"
    notes = convert_source(script, "train.py", Options(select=frozenset({"DDP004"}))).notes
    wanted = f"the script names several GPUs ({noted}), and now all of them mean this rank's own"
    assert [note.what for note in notes] == ([] if noted is None else [wanted])


OPTION = "import argparse, torch.nn as nn\nparser = argparse.ArgumentParser()\n"
OPTION += "parser.add_argument('--device', default='cuda:1')\nargs = parser.parse_args()\n"


@pytest.mark.parametrize("test", ["args.device == 'cuda:1'", "args.device in ('cpu', 'cuda:1')"])
def test_a_device_that_is_compared_stays_and_is_noted_where_options_name_it(test: str) -> None:
    line = f"if {test}:\n    print(1)\n"
    wrap = "net = nn.DataParallel(nn.Linear(4, 2).to(args.device))\n"
    result = convert_source(OPTION + wrap + line, "train.py", Options())
    assert 'default="cuda"' in result.new_text
    assert line in result.new_text
    assert [note.span.start.line for note in result.notes if note.rule == "DDP004"] == [6]
    plain = convert_source("import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n" + line, "t.py", Options())
    assert line in plain.new_text
    assert not plain.notes


_FORWARD = "class Moving(nn.Module):\n    def forward(self, x, boxes):\n        d = x.device\n"


@pytest.mark.parametrize(
    "line",
    [
        "y = y.cuda(x.get_device())",
        "torch.cuda.set_device(x.get_device())",
        f"{_FORWARD}        return x + y.cuda(d) + y.to(d) + y.cuda(x.device) + y.cuda(device=boxes[0].device)",
    ],
)
def test_the_device_of_a_tensor_is_this_rank_s(line: str) -> None:
    assert converted(line).endswith(f"{line}\n")


@pytest.mark.parametrize(
    ("device", "stays"),
    [
        ("torch.cuda.current_device()", True),
        ("torch.device('cuda')", True),
        ("torch.device('cuda' if torch.cuda.is_available() else 'cpu')", True),
        ("torch.device('cuda:0') if torch.cuda.is_available() else torch.device('cpu')", True),
        ("'cuda:%d' % args.gpu", True),
        ("0", True),
        ("opt.device", True),
        ("Net(opt.device).device", True),
        ("opt.gpu", False),
        ("torch.device(args.device)", False),
        ("args.gpu", False),
    ],
)
def test_a_device_that_the_script_has_by_a_name_is_this_rank_s(device: str, stays: bool) -> None:
    lines = "device = {}\nstate = torch.load('net.pt', lambda storage, loc: storage.cuda({}))\n"
    script = (
        "import torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\nparser.add_argument('--gpu')\n"
        "class Net:\n    def __init__(self, device):\n        self.device = device\n"
        "opt.device = torch.device('cuda:%d' % opt.gpu)\nopt.gpu = torch.device('cuda')\n" + lines
    )
    new = convert_source(script.format(device, "device"), "train.py", Options(select=frozenset({"DDP004"}))).new_text
    device = device.replace("'cuda:%d' % args.gpu", "ddp.device()")  # its own line sees to it
    assert new.endswith(lines.format(device, "device" if stays else ""))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = torch.randn(4, device=index)", "y = torch.randn(4, device=ddp.device())"),
        ("y = x.to(index)", "y = x.to(ddp.device())"),
        ("y = x.to(device=index, dtype=kind)", "y = x.to(device=ddp.device(), dtype=kind)"),
        ("y = x.new_zeros(4, device=gpus[0])", "y = x.new_zeros(4, device=ddp.device())"),
        ("y = torch.device(index)", "y = ddp.device()"),
        ("y = x.to(device=other)", "y = x.to(device=other)"),
        ("Part.at = torch.device('cuda')\n    y = x.to(Part.at).cuda(Part.at)",) * 2,
        ("y = names[index]", "y = names[index]"),
    ],
)
def test_all_uses_of_an_index_change(line: str, expected: str) -> None:
    script = (
        "import torch\nimport torch.nn as nn\ngpus = [1, 2]\nnet = nn.DataParallel(nn.Linear(4, 2), gpus)\n"
        f"def run(index, x, other, names, kind):\n    torch.cuda.set_device(index)\n    {line}\nrun(1, *read())\n"
    )
    result = convert_source(script, "train.py", Options(select=frozenset({"DDP004"}))).new_text
    assert f"    torch.cuda.set_device(ddp.device())\n    {expected}\n" in result


@pytest.mark.parametrize(
    ("parameter", "body", "changes"),
    [
        ("rerank_topk", "return x[:rerank_topk]", False),
        ("dev_size", "return x[:dev_size]", False),
        ("num_gpus", "return x[:num_gpus]", False),
        ("gpu_batch", "return x[:gpu_batch]", False),
        ("rank", "return x.cuda(rank)", True),
        ("gpu_id", "return move(x, gpu_id)", True),
    ],
)
def test_a_number_is_a_device_by_what_is_done_with_it(parameter: str, body: str, changes: bool) -> None:
    script = f"""
        import torch.nn as nn
        from lib import move
        class Index:
            def search(self, x, {parameter}=75):
                {body}
        net = nn.DataParallel(nn.Linear(4, 2))
        Index().search([1, 2], {parameter}=100)
        """
    new = convert_source(textwrap.dedent(script), "train.py", Options()).new_text
    assert (f"search([1, 2], {parameter}=ddp.device())" in new) == changes
    assert (f"search([1, 2], {parameter}=100)" in new) != changes


@pytest.mark.parametrize(("ids", "stays"), [("range(args.n)", True), ("range(1, args.n)", False), ("args.ids", False)])
def test_the_first_of_a_range_is_the_first_gpu(ids: str, stays: bool) -> None:
    script = f"import torch.nn as nn\nids = {ids}\nnet = nn.DataParallel(nn.Linear(4, 2), ids)\nx = x.cuda(ids[0])\n"
    new = convert_source(script, "train.py", Options(select=frozenset({"DDP004"}))).new_text
    assert (new == script) == stays
