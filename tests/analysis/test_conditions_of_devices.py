"""What `ddp.setup()` is given says what the conditions of the wraps say, in no more words than it needs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp2ddp.analysis.control.ways import simplest
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_TESTS = (
    "a,not a,b,not b,a and b,not (a and not b),x > 1,x <= 1,x == 1,x != 1,x == 2,x != 2,x == 3,x in [1],x == y,"
    "x == 1 or x == 2,a or b"
)
_WAYS = st.lists(
    st.lists(st.sampled_from(_TESTS.split(",")), max_size=4, unique=True).map(tuple), min_size=1, max_size=4
)


@settings(max_examples=200, deadline=None)
@given(_WAYS)
def test_the_simplest_ways_are_true_where_one_of_the_ways_is(ways: list[tuple[str, ...]]) -> None:
    found = simplest(ways)
    for values in product((False, True), (False, True), (1, 2, 3), (1, 2)):
        names = dict(zip("abxy", values))
        true = [any(all(eval(test, names) for test in way) for way in each) for each in (ways, found)]
        assert true[0] == true[1], names
    assert sum(map(len, found)) <= sum(map(len, ways))


@pytest.mark.parametrize(
    ("wraps", "given"),
    [
        ("if c:\n    if d: W\nelif m == 2:\n    pass\n", "device_ids=None if c and d else [0]"),
        ("if c and d: W\nelif not c and d: W\n", "device_ids=None if d else [0]"),
        ("if m == 1:\n    if d: W\nelif m == 2:\n    if d: W\n", "device_ids=None if m in (1, 2) and d else [0]"),
        ("if c and not d:\n    pass\nelif d: W\n", "device_ids=None if d else [0]"),
        ("if m == 1 or m == 2:\n    if c: W\n    else: W\n", "device_ids=None if m in (1, 2) else [0]"),
        ("if m == 1 or d:\n    if c: W\n    else: W\n", "device_ids=None if m == 1 or d else [0]"),
        ("if m > 1: pass\nelse: W\n", "device_ids=None if m <= 1 else [0]"),
        ("if m == 1: W\nelif m in [2, 3]: W\n", "device_ids=None if m in (1, 2, 3) else [0]"),
        ("if m == 1:\n    if c: W\nelif m == 2:\n    if d: W\n", ""),
        ("if m == 1: W\nelif m == c: W\n", ""),
        ("if m == 1: pass\nelif m == 2: W\n", "device_ids=None if m == 2 else [0]"),
        ("def build(several=c):\n    if several: W\nbuild(**d)\n", None),
        ("def build(several=c):\n    if several: W\nbuild(d)\n", "device_ids=None if d else [0]"),
        # It may be a wrapped one that was saved whole.
        ("if m == 1: W\nelse:\n    found = torch.load(c)\n    net = found['net']\nnet.cuda()\n", None),
    ],
)
def test_setup_is_given_one_condition_or_none(wraps: str, given: str | None) -> None:
    """What is more than one is told behind the wraps, where it is known."""
    head = "import torch\nimport torch.nn as nn\nfrom options import c, d, m\nnet = nn.Linear(4, 2)\n"
    new = convert_source(head + wraps.replace("W", "net = nn.DataParallel(net)"), "train.py", Options()).new_text
    assert f"ddp.setup({given or ''})\n" in new
    assert new.endswith("ddp.release_idle()\n") == (given == "")


@pytest.mark.parametrize(
    ("lines", "is_one"),
    [
        ("torch.jit.script(net.module)\n", True),
        ("torch.onnx.export(net.module, args=1)\n", True),
        ("torch.jit.script(net)\n", False),
        ("print(net.module.training)\n", False),
        ("torch.jit.script(net.module)\nprint(net(1))\n", False),
        ("class A:\n    own = nn.DataParallel(net.module)\n    print(own.module)\nA.own(1)\n", False),
    ],
)
def test_a_script_that_only_takes_out_what_it_wraps_stays_one_process(lines: str, is_one: bool) -> None:
    head = "import torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2)).cuda()\nnet.eval()\n"
    assert convert_source(head + lines, "export.py", Options()).on_one_device == is_one


@pytest.mark.parametrize("line", ["keys.load_state_dict(torch.load(c))", "keys(1)", "keys.eval()"])
def test_a_wrap_that_only_gives_a_checkpoint_s_keys_asks_for_no_processes(line: str) -> None:
    script = (
        f"import torch\nimport torch.nn as nn\nfrom options import c, d\ndef build(net):\n    keys = W\n    {line}\n"
    )
    script += "    return net\nnet = build(nn.Linear(4, 2))\nif d:\n    net = W\n"
    new = convert_source(script.replace("W", "nn.DataParallel(net)"), "train.py", Options()).new_text
    assert ("ddp.setup(device_ids=None if d else [0])" in new) == ("load" in line)


_CONVERT = """\
def convert(module):
    if isinstance(module, nn.DataParallel):
        return nn.DataParallel(convert(module.module), device_ids=module.device_ids)
    return module
if c: net = nn.DataParallel(convert(net))
"""


def test_a_function_that_calls_itself_is_reached_as_those_are_that_call_it() -> None:
    head = "import torch.nn as nn\nfrom options import c\nnet = nn.Linear(4, 2)\n"
    assert (
        "ddp.setup(device_ids=None if c else [0])\n" in convert_source(head + _CONVERT, "train.py", Options()).new_text
    )


@pytest.mark.parametrize(
    ("lines", "is_known"),
    [
        ("if not torch.cuda.is_available(): args.cuda = False", True),
        ("if not torch.cuda.is_available() and args.verbose: args.cuda = False", True),
        ("if not (args.verbose or torch.cuda.device_count() > 0): args.cuda = False", True),
        ("def on_cpu():\n    args.cuda = False\nif torch.cuda.device_count() == 0: on_cpu()", True),
        ("if torch.cuda.device_count() < 2: args.cuda = False", False),
        ("if args.verbose: args.cuda = False", False),
        ("if not torch.cuda.is_available() or args.verbose: args.cuda = False", False),
        # An option is more than what one line under a condition sets it to; `None` differs from a number.
        ("if args.small: args.fast = True\nif not args.fast: args.cuda = False", False),
        ("kind = None\nif kind != 3 and torch.cuda.is_available(): args.cuda = False", False),
    ],
)
def test_what_only_changes_where_there_is_no_gpu_is_known(lines: str, is_known: bool) -> None:
    head = "import argparse, torch, torch.nn as nn\nargs = argparse.ArgumentParser().parse_args()\n"
    head += "net = nn.Linear(4, 2)\n"
    wrap = "\nif args.cuda:\n    net = nn.DataParallel(net)\n"
    new = convert_source(head + lines + wrap, "train.py", Options()).new_text
    assert f"ddp.setup({'device_ids=None if args.cuda else [0]' if is_known else ''})\n" in new
