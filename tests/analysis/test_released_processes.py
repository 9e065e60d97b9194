"""Where processes that may have nothing to do are released: behind the wraps, by `ddp.release_idle()`."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import argparse\nimport torch\nimport torch.nn as nn\nargs = argparse.ArgumentParser().parse_args()\n"

IDLE = {
    "a condition that isn't known before": ("if net.many():\n    net = {}\n", True),
    "one in a loop": ("for fold in range(3):\n    if net.many():\n        net = {}\n", False),
    "in a function that is called once": ("def build():\n    if net.many(): {}\nbuild()\n", True),
    "in a function that is called again": ("def build():\n    if net.many(): {}\nbuild()\nbuild()\n", False),
    "in a function that a loop calls": ("def build():\n    if net.many(): {}\nfor i in range(2): build()\n", False),
    "one of which a part is known before": ("if args.several and net.many():\n    net = {}\n", True),
    "one that is known before": ("if args.several:\n    net = {}\n", False),
    "wraps in several functions": (
        "def one():\n    if net.many(): {}\ndef two():\n    if net.few(): {}\none()\ntwo()\n",
        False,
    ),
    "one that is true wherever there are several GPUs": ("if torch.cuda.device_count() > 1:\n    net = {}\n", False),
    "no condition": ("net = {}\n", False),
    "either way, where a part is known before": (
        "if args.resume and net.found():\n    net = {}\nelse:\n    net = {}\n",
        False,
    ),
    "one way, as the other returns": (
        "def main():\n    if net.many():\n        net = {}\n    else:\n        return\n    print(net)\nmain()\n",
        False,
    ),
    "a flag of whether there are GPUs": (
        "use = False\nif torch.cuda.is_available():\n    use = True\nif use:\n    net = {}\nprint(net)\n",
        False,
    ),
    "a flag that is set to that first": (
        "if torch.cuda.is_available():\n    use = True\nuse = False\nif use:\n    net = {}\nprint(net)\n",
        True,
    ),
    "a flag that a loop sets, too": (
        "use = torch.cuda.is_available()\nfor use in net.many(): pass\nif use:\n    net = {}\nprint(net)\n",
        True,
    ),
    "a function that may return before": (
        "def build(net):\n    if net.many():\n        net = {}\n    else:\n        return net\n    return net.big()\n"
        "net = build(net)\nprint(net)\n",
        True,
    ),
    "a flag of something else": (
        "use = False\nif net.many():\n    use = True\nif use:\n    net = {}\nprint(net)\n",
        True,
    ),
    "a choice within a line": ("net = {} if net.many() else net\nprint(net)\n", True),
    "a device that is a GPU wherever there is one": (
        "def build(net, device):\n    if device == torch.device('cuda'):\n        net = {}\n    return net\n"
        "build(net, torch.device('cuda' if torch.cuda.is_available() else 'cpu'))\n",
        False,
    ),
    "a device that may be another": (
        "def build(net, device):\n    if device == torch.device('cuda'):\n        net = {}\n    return net\n"
        "build(net, torch.device('cuda' if net.big() else 'cpu'))\n",
        True,
    ),
    "a device that is set to another": (
        "def build(net, device):\n    device = net.pick(device)\n    if device == torch.device('cuda'):\n"
        "        net = {}\n    return net\nbuild(net, torch.device('cuda'))\n",
        True,
    ),
    "a device that a dictionary may give": (
        "def build(net, device=torch.device('cuda')):\n    if device == torch.device('cuda'):\n        net = {}\n"
        "    return net\nbuild(net, **net.options())\n",
        True,
    ),
    "a device that is the CPU by one of two calls": (
        "def build(net, device):\n    if device == torch.device('cuda'):\n        net = {}\n    return net\n"
        "if net.few():\n    net = build(net, torch.device('cuda'))\nelse:\n    net = build(net, torch.device('cpu'))\n",
        True,
    ),
    "in a function that both branches call": (
        "def build(net):\n    if net.many():\n        return {}\n    return net\n"
        "if args.old:\n    net = build(net)\nelse:\n    net = build(net.new())\nprint(net)\n",
        True,
    ),
    "one of two": ("if net.many():\n    net = {}\nother = {}\n", False),
}


@pytest.mark.parametrize("way", IDLE)
def test_processes_that_may_have_nothing_to_do_are_released_behind_the_wraps(way: str) -> None:
    lines, is_released = IDLE[way]
    script = f"{_HEAD}net = nn.Linear(4, 2)\n{lines.format(*['nn.DataParallel(net)'] * lines.count('{}'))}"
    new = convert_source(script, "train.py", Options()).new_text
    assert new.count("ddp.release_idle()") == is_released
    if is_released:
        before = next(line for line in new.splitlines() if "wrap_model(" in line)
        assert before in new.partition("ddp.release_idle()")[0]


def test_what_ends_the_function_without_a_wrap_is_no_condition() -> None:
    """Where it would be a long one: nothing of the program is behind it."""
    names = " or ".join(f"args.net == 'a rather long name {n}'" for n in range(3))
    script = (
        f"def main():\n    if {names}:\n        net = nn.DataParallel(nn.Linear(4, 2))\n    else:\n        return\n"
    )
    new = convert_source(f"{_HEAD}{script}    print(net)\n\nmain()\n", "train.py", Options()).new_text
    assert "ddp.setup()\n" in new
    assert "release_idle" not in new


def test_processes_are_released_where_no_other_script_has_wraps_to_come() -> None:
    nets = "import torch.nn as nn\ndef build(net):\n    if net.many(): net = nn.DataParallel(net)\n    return net\n"
    test = f"{_HEAD}from nets import build\nnet = build(nn.Linear(4, 2))\nprint(net)\n"
    train = test + "if args.half:\n    net = nn.DataParallel(net)\n"
    files = {"nets.py": nets, "test.py": test, "train.py": train}
    alone = convert_files({name: files[name] for name in ("nets.py", "test.py")}, ["test.py"], Options())
    both = convert_files(files, ["test.py", "train.py"], Options())
    assert "    ddp.release_idle()\n    return net\n" in alone["nets.py"].new_text
    assert "release_idle" not in alone["test.py"].new_text + both["nets.py"].new_text
    assert "net = build(nn.Linear(4, 2))\nddp.release_idle()\nprint(net)\n" in both["test.py"].new_text
    assert "build(nn.Linear(4, 2))\nprint(net)\n" in both["train.py"].new_text
