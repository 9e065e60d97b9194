"""Devices that a configuration names, and a loop makes a list of: as programs of incremental learning have it."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_SCRIPT = """\
import copy
import json
import torch
import torch.nn as nn

class Learner:
    def __init__(self, args):
        self.gpus = args["device"]
        self.net = nn.Linear(4, 2)
        if len(self.gpus) > 1:
            self.net = nn.DataParallel(self.net, self.gpus)

def _set_device(args):
    gpus = []
    for number in args["device"]:
        if number == -1:
            device = torch.device("cpu")
        else:
            device = torch.device("cuda:{}".format(number))
        gpus.append(device)
    args["device"] = gpus

def train(args):
    device = copy.deepcopy(args["device"])
    for seed in (1, 2):
        args["device"] = device
        _set_device(args)
        Learner(args)

def main():
    args = {"device": [0]}
    with open("config.json") as file:
        args.update(json.load(file))
    train(args)

main()
"""


def _setup(old: str, new: str) -> str:
    assert old in _SCRIPT
    lines = convert_source(_SCRIPT.replace(old, new), "train.py", Options()).new_text.splitlines()
    return next(line.strip() for line in lines if "ddp.setup(" in line)


def test_what_a_loop_makes_devices_of_is_what_setup_is_given() -> None:
    assert _setup("main()", "main()") == 'ddp.setup(device_ids=args["device"])'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".format(number))\n", ".format(number + 1))\n"),
        ("        gpus.append(device)\n", "        if number:\n            gpus.append(device)\n"),
        ("        gpus.append(device)\n", "        gpus.append(device)\n        gpus.append(device)\n"),
        ("        gpus.append(device)\n", "    else:\n        gpus.append(device)\n"),
        ('torch.device("cuda:{}".format(number))', "pick(number)"),
        ('            device = torch.device("cpu")\n', "            continue\n"),
        (
            '    args["device"] = gpus\n',
            '    from other import gpus\n    gpus = copy.copy(gpus)\n    args["device"] = gpus\n',
        ),
        ("    gpus = []\n", "    gpus = [torch.device('cuda:1')]\n"),
        ('in args["device"]:', 'in args["other"]:'),
        ('        args["device"] = device\n', '        args["device"] = device[:1]\n'),
        ("        Learner(args)\n", "        args.update(json.loads('{}'))\n        Learner(args)\n"),
    ],
)
def test_other_lists_are_not_taken_for_it(old: str, new: str) -> None:
    assert _setup(old, new) in ("ddp.setup()", "ddp.setup(device_ids=None)")
