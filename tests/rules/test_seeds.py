"""`torch.manual_seed` seeds all generators only where that gives none of them other numbers than before."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = "import random\nimport numpy as np\nimport torch\nimport torch.nn as nn\n"
_NET = "net = nn.DataParallel(nn.Linear(4, 2))\n"

ALL = [
    "torch.manual_seed(3)\n",
    "random.seed(3)\nnp.random.seed(3)\ntorch.manual_seed(3)\nx = np.random.rand() + random.random()\n",
    "random.seed(s)\ntorch.manual_seed(s)\nx = random.random()\n",
    "torch.manual_seed(3)\nrng = np.random.default_rng(3)\nx = rng.random() + random.Random(3).random()\n",
]
LEFT = [
    "torch.manual_seed(3)\nlam = np.random.beta(1, 1)\n",  # mixup: each run draws others
    "torch.manual_seed(3)\nrandom.shuffle(files)\n",
    "from numpy import random as r\ntorch.manual_seed(3)\nx = r.rand()\n",
    "from random import choice as pick\ntorch.manual_seed(3)\npick([1, 2])\n",
    "random.seed(3)\ntorch.manual_seed(3)\nx = np.random.rand()\n",
    "random.seed(4)\ntorch.manual_seed(3)\n",
    "torch.manual_seed(3)\ntorch.manual_seed(4)\n",
    "for run in range(3):\n    torch.manual_seed(run)\n",
]


def _converted(text: str) -> str:
    return convert_source(_HEAD + text + _NET, "train.py", Options(select=frozenset({"DDP010"}))).new_text


@pytest.mark.parametrize("text", ALL)
def test_all_generators_are_seeded(text: str) -> None:
    assert text.replace("torch.manual_seed", "ddp.seed_everything") in _converted(text)


@pytest.mark.parametrize("text", LEFT)
def test_the_script_s_own_seeding_stays(text: str) -> None:
    assert _converted(text) == _HEAD + text + _NET
