"""Whose class `isinstance(model, nn.DataParallel)` asks for."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_CHECKS = """\
import torch
from torch.nn import DataParallel

def plain(net):
    return net.module if isinstance(net, DataParallel) else net

torch.save(plain(torch.load("net.pt")), "plain.pt")
"""


@pytest.mark.parametrize("more", ["", "step(DataParallel(SGD))\n", "step(DataParallel(module=SGD))\n"])
def test_a_script_that_wraps_no_model_asks_for_what_it_loads(more: str) -> None:
    """It stays a single process, and what it loads is a plain `DataParallel`."""
    sgd = "torch.optim.SGD(parameters, lr=0.1)"
    new = convert_source(_CHECKS + more.replace("SGD", sgd), "export.py", Options()).new_text
    assert new == _CHECKS + f"step({sgd})\n" * bool(more)


def test_a_file_of_a_program_that_wraps_models_asks_for_the_wrapper() -> None:
    train = "import torch.nn as nn\nfrom checks import plain\nprint(plain(nn.DataParallel(nn.Linear(4, 2))))\n"
    done = convert_files({"train.py": train, "checks.py": _CHECKS}, ["train.py"], Options())
    assert "isinstance(net, ddp.WrappedModel)" in done["checks.py"].new_text
    assert "from torch.nn import DataParallel" not in done["checks.py"].new_text


@pytest.mark.parametrize("used", ["DataParallel, wrap", "wrap, DataParallel as Other"])
@pytest.mark.parametrize("said", ["", "__all__ = ['DataParallel', 'wrap']\n"])
def test_an_import_that_another_file_takes_stays(used: str, said: str) -> None:
    wraps = f"from torch.nn import DataParallel\n{said}def wrap(net):\n    return DataParallel(net)\n"
    files = {
        "train.py": f"import torch.nn as nn\nfrom wraps import {used}\nnet = wrap(nn.Linear(4, 2))\n",
        "wraps.py": wraps,
    }
    done = convert_files(files, ["train.py"], Options())
    assert done["wraps.py"].new_text.startswith("from torch.nn import DataParallel\n")
    assert "    return ddp.wrap_model(net)\n" in done["wraps.py"].new_text
