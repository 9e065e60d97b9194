"""The picture of a flow: which loader feeds which model, what single processes do; of what a script comes to alone."""

from __future__ import annotations

from dp2ddp.convert.page.drawing import Box, drawn, written
from dp2ddp.convert.page.flow import Flow, Link
from dp2ddp.convert.page.flows import flows_of
from dp2ddp.convert.page.who import tasks
from dp2ddp.convert.programs import Program
from dp2ddp.rules import Options

SCRIPT = """\
import os
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

train_loader = DataLoader(torch.rand(64, 4), batch_size=16, shuffle=True)
loaders = {"test": DataLoader(torch.rand(32, 4), batch_size=16)}
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1]).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in train_loader:
    net(x).mean().backward()
    optimizer.step()
path = os.path.join("out", "net.pt")
torch.save(net.module.state_dict(), path)
again = nn.DataParallel(nn.Linear(4, 2))
again.load_state_dict(torch.load(path))
for x in loaders["test"]:
    print(again(x).mean())
"""


def _flow(text: str) -> Flow:
    (flow,) = flows_of([Program("train.py", {"train.py": text})], Options())
    return flow


def test_which_loader_feeds_which_model() -> None:
    flow = _flow(SCRIPT)
    assert [(part.name, part.line) for part in flow.loaders] == [("train_loader", 6), ('"test"', 7)]
    assert [(part.name, part.line) for part in flow.models] == [("net", 8), ("again", 15)]
    assert flow.models[0].detail == "nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])"
    assert flow.links == (Link(0, 0, True), Link(1, 1, False))


def test_who_writes() -> None:
    deeds = {(deed.what, deed.who, deed.name, deed.line, deed.models) for deed in _flow(SCRIPT).deeds}
    assert deeds == {("writes", "alone", "out/net.pt", 14, (0,))}


def test_a_name_is_what_it_was_given_last() -> None:
    text = SCRIPT.replace("again", "net")
    assert _flow(text).links == (Link(0, 0, True), Link(1, 1, False))


BRANCHES = """\
if os.environ.get("BIG"):
    net = nn.DataParallel(nn.Linear(4, 2))
else:
    net = nn.DataParallel(nn.Linear(4, 2))
"""


def test_one_of_two_branches_is_any_of_them() -> None:
    text = SCRIPT.replace("net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1]).cuda()\n", BRANCHES)
    assert {link.model for link in _flow(text).links if link.loader == 0} == {0, 1}


FUNCTIONAL = """\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(4, 2)

    def forward(self, x):
        out = nn.parallel.data_parallel(self.main, x, [0, 1])
        return out

critic = Critic()
for x in DataLoader(torch.rand(64, 4)):
    critic(x).mean().backward()
"""


def test_the_functional_form_goes_by_its_class() -> None:
    flow = _flow(FUNCTIONAL)
    assert [part.name for part in flow.models] == ["Critic"]
    assert flow.links == (Link(0, 0, True),)


HELPERS = """\
import torch
import torch.nn as nn

def build():
    return nn.DataParallel(nn.Linear(4, 2))

def build_large():
    return nn.DataParallel(nn.Linear(4, 2000))

def store(net):
    torch.save(net.state_dict(), "net.pt")
"""
TRAIN = """\
import torch
from helpers import build, build_large, store
net = build()
large = build_large()
net(torch.rand(8, 4))
store(net)
"""
TEST = """\
import torch
from helpers import build
net = build()
net(torch.rand(8, 4))
"""


def test_a_script_shows_what_it_comes_to() -> None:
    programs = [Program("train.py", {"train.py": TRAIN, "helpers.py": HELPERS})]
    programs.append(Program("test.py", {"test.py": TEST, "helpers.py": HELPERS}))
    trained, tested = flows_of(programs, Options())
    assert [deed.name for deed in trained.deeds] == ['"net.pt"']
    assert tested.deeds == ()
    assert [(part.name, part.path) for part in tested.models] == [("build()", "helpers.py")]
    assert [part.name for part in trained.models] == ["build()", "build_large()"]
    assert {part.path for part in trained.starts} == {"train.py"}
    assert {part.path for part in tested.starts} == {"test.py"}


def test_nothing_to_draw_without_a_wrap() -> None:
    assert flows_of([Program("a.py", {"a.py": "print(1)\n"})], Options()) == []


def test_the_table_follows_the_script() -> None:
    rows = {task.what: (task.first, task.others, [part.line for part in task.parts]) for task in tasks(_flow(SCRIPT))}
    assert rows["Loads samples"] == ("its part of each batch", "their parts of it", [6, 7])
    assert rows["Writes files, reports"] == ("yes", "go on without", [14])
    assert "Downloads, unpacks" not in rows
    mixed = next(line for line in SCRIPT.splitlines() if "DataLoader(" in line and "import" not in line)
    whole = SCRIPT.replace(mixed, mixed[: mixed.rindex(")")] + ", collate_fn=mix)")
    rows = {task.what: (task.first, [part.line for part in task.parts]) for task in tasks(_flow(whole))}
    assert rows["Loads samples, with a collate_fn that may mix rows"] == ("whole batches", [6])
    assert rows["Loads samples"] == ("its part of each batch", [7])
    only_tested = SCRIPT.replace(".backward()", "")
    assert "Averages the gradients, takes the optimizer's step" not in {task.what for task in tasks(_flow(only_tested))}


def _apart(one: Box, other: Box) -> bool:
    beside = one.x + one.width <= other.x or other.x + other.width <= one.x
    return beside or one.y + one.height <= other.y or other.y + other.height <= one.y


def test_boxes_lie_in_their_lanes_and_apart() -> None:
    many = SCRIPT + "".join(f"torch.save(net.state_dict(), 'net-{n}.pt')\n" for n in range(20))
    flow = _flow(many)
    for upright in (True, False):
        drawing = drawn(flow, upright=upright)
        assert len(drawing.boxes) == 2 + 2 + 8 + 1
        assert drawing.boxes[-1].title == f"and {len(written(flow)) - 8} more"
        lanes = {"loader": 0, "model": 1, "file": 2, "more": 2}
        for box in drawing.boxes:
            lane = drawing.lanes[lanes[box.kind]]
            assert lane.x <= box.x
            assert box.x + box.width <= lane.x + lane.width <= drawing.width
            assert lane.y <= box.y
            assert box.y + box.height <= lane.y + lane.height <= drawing.height
        assert all(_apart(a, b) for a in drawing.boxes for b in drawing.boxes if a is not b)
        assert sorted(arrow.kind for arrow in drawing.arrows) == ["evaluates", *["saves"] * 8, "trains"]
        assert drawing.arrows[0].says == "train_loader trains net"


def test_long_names_are_cut_to_the_box() -> None:
    flow = _flow(SCRIPT.replace("train_loader", "a_loader_with_a_name_that_goes_on_and_on"))
    box = drawn(flow, upright=False).boxes[0]
    assert box.title == "a_loader_with_a_name_that_go…"
    assert box.part is not None
    assert box.part.name == "a_loader_with_a_name_that_goes_on_and_on"
