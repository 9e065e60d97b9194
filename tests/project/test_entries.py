"""Which files of a project are scripts that wrap a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import write

from dp2ddp.project import entries
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles

GUARD = "if __name__ == '__main__':\n    main()\n"
WRAP = "import torch.nn as nn\n\ndef wrap(net):\n    return nn.DataParallel(net)\n"


def guess(folder: Path, files: Mapping[str, str | bytes]) -> entries.Entries:
    write(folder, files)
    sources = PythonFiles(folder, files)
    return entries.guess(sources, Layout(sources))


@pytest.mark.parametrize(
    "script",
    [
        f"from nets import wrap\nmain = wrap\n{GUARD}",
        "from nets import wrap as w\nif __name__ == '__main__':\n    w()\n",
        f"import nets\nnet = getattr(nets, 'wrap')(net)\n{GUARD}",
        "import importlib\nnets = importlib.import_module('nets')\nfor i in range(3): nets.wrap()\n",
    ],
)
def test_scripts_are_found_by_what_they_do_and_reach(tmp_path: Path, script: str) -> None:
    files = {
        "nets.py": WRAP,
        "helper.py": "import nets\ndef run():\n    nets.wrap()\n",
        "deep/__init__.py": "from .b import *",
        "deep/b.py": "import nets\nwrapped = nets.wrap(1)",
        "unrelated.py": f"import os\n{GUARD}",
    }
    assert guess(tmp_path, {"train.py": script, **files}).entries == ["train.py"]


@pytest.mark.parametrize(
    "module", ["", "import nets\n", "import nets\ndef f():\n    for i in x: g()\n", "import nets\nclass A: pass\n"]
)
def test_modules_are_no_scripts(tmp_path: Path, module: str) -> None:
    found = guess(tmp_path, {"nets.py": WRAP, "module.py": module})
    assert found.entries == []
    assert found.wraps == {"nets.py": [4]}


def test_what_is_imported_is_a_script_only_with_a_guard_and_arguments(tmp_path: Path) -> None:
    loop = "for i in range(3):\n    print(i)\n"
    files = {
        "train.py": f"import model, other, demo, third\nmodel.wrap(1)\n{GUARD}",
        "model.py": f"{WRAP}{loop}",
        "other.py": f"import argparse\n{WRAP}wrap(1)\n{GUARD}",
        "demo.py": f"{WRAP}wrap(1)\n{GUARD}",
        "third.py": f"{WRAP}",
        "test.py": "import torch\nnet = torch.nn.parallel.DataParallel(Net())\n",
        "call.py": "from torch.nn import parallel as p\nprint(p.data_parallel(net, x))\n",
        "ddp.py": "import torch.nn as nn\nnet = nn.parallel.DistributedDataParallel(Net())\n",
    }
    assert guess(tmp_path, files).entries == ["call.py", "other.py", "test.py", "train.py"]


def test_subclasses_and_theirs_count_where_they_are_called(tmp_path: Path) -> None:
    files = {
        "parallel.py": "from torch.nn import DataParallel\nclass Mine(DataParallel): pass\n",
        "second.py": "from parallel import Mine\nclass Second(Mine): pass\n",
        "third.py": "import second\nclass Third(second.Second): pass\n",
        "train.py": f"from third import Third\nnet = Third(Net())\n{GUARD}",
        "check.py": f"import parallel\nif isinstance(net, parallel.DataParallel): pass\n{GUARD}",
    }
    found = guess(tmp_path, files)
    assert (found.entries, found.wraps) == (["train.py"], {"train.py": [2]})


def test_what_cant_be_read_is_told_and_no_script(tmp_path: Path) -> None:
    files = {
        "old.py": "print 'DataParallel'\n",
        "bytes.py": b"# DataParallel \xff\n",
        "fine.py": b"# \xff\n",
        "train.py": f"{WRAP}main = wrap\n{GUARD}",
    }
    found = guess(tmp_path, files)
    assert found.entries == ["train.py"]
    assert [(error.file, error.line) for error in found.unread] == [("old.py", 1), ("bytes.py", 1)]


@pytest.mark.parametrize(
    "test",
    [
        "import unittest\nclass TestNets(unittest.TestCase):\n    def test(self): nets.wrap(1)\n"
        "if __name__ == '__main__':\n    unittest.main()\n",
        "import pytest\ndef test_wrap(): nets.wrap(1)\nif __name__ == '__main__':\n    pytest.main()\n",
        "from absl.testing import absltest\nclass NetsTest(absltest.TestCase):\n    def test_wrap(self): nets.wrap(1)\n"
        "if __name__ == '__main__':\n    absltest.main()\n",
    ],
)
def test_unit_tests_are_no_scripts(tmp_path: Path, test: str) -> None:
    found = guess(tmp_path, {"nets.py": WRAP, "check_nets.py": f"import nets\n{test}"})
    assert (found.entries, found.tests) == ([], ["check_nets.py"])
