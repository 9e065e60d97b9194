"""Which files of a project are scripts that wrap a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dp2ddp import entries, syntax, wrapcalls
from dp2ddp.modules import Layout
from dp2ddp.sources import Sources

GUARD = "if __name__ == '__main__':\n    main()\n"
WRAP = "import torch.nn as nn\n\ndef wrap(net):\n    return nn.DataParallel(net)\n"


def guess(folder: Path, files: Mapping[str, str | bytes]) -> entries.Guess:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    sources = Sources(folder, files)
    return entries.guess(sources, Layout(sources))


@pytest.mark.parametrize(
    "script",
    [
        f"from nets import wrap\n{GUARD}",
        f"import nets\nnet = getattr(nets, 'wrap')(net)\n{GUARD}",
        "import nets\nfor epoch in range(3):\n    nets.wrap(epoch)\n",
        "import nets\nwhile True:\n    nets.wrap()\n",
        "def main():\n    from nets import *\n    wrap()\n\nmain()\n",
        "def main():\n    import nets\n    nets.wrap()\n\nresult = main()\n",
        "import nets\ntry:\n    for i in range(3): nets.wrap()\nexcept KeyboardInterrupt:\n    pass\n",
        "import helper\nif '__main__' == __name__:\n    helper.run()\n",
        "import importlib\nnets = importlib.import_module('nets')\nfor i in range(3): nets.wrap()\n",
        f"from deep import (\n    a,\n    b)\n{GUARD}",
        f"from deep import *\n{GUARD}",
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
    "module",
    [
        "",
        "import nets\n",
        "import nets\nx = nets.wrap(1)\n",
        "import nets\ndef f():\n    for i in x: g()\n",
        "import nets\nclass A: pass\n",
    ],
)
def test_modules_are_no_scripts(tmp_path: Path, module: str) -> None:
    found = guess(tmp_path, {"nets.py": WRAP, "module.py": module})
    assert found.entries == []
    assert found.wraps == {"nets.py": [4]}


@pytest.mark.parametrize(
    "script",
    [
        f"import nets\n{GUARD}",
        f"from nets import other\nother()\n{GUARD}",
        f"from nets import *\n{GUARD}",
        f"import third\nthird.a()\n{GUARD}",
    ],
)
def test_a_wrap_that_is_out_of_use_makes_no_script(tmp_path: Path, script: str) -> None:
    third = "import nets\ndef a(): pass\ndef b(): nets.wrap(1)\nif __name__ == '__main__':\n    b()\n"
    files = {"train.py": script, "nets.py": f"{WRAP}def other(): pass\n", "third.py": third}
    assert guess(tmp_path, files).entries == ["third.py"]


@pytest.mark.parametrize(
    "module",
    [
        "import nets\n@register\ndef f(): nets.wrap(1)\n",
        "import nets\nclass A:\n    def f(self): nets.wrap(1)\nmodels = {'a': A}\n",
        "import nets\nif True:\n    def f(): nets.wrap(1)\n",
        "from nets import wrap as w\n",
        "from torch.nn import DataParallel as DP\ndef wrap(): DP(net)\nx = wrap\n",
    ],
)
def test_what_may_be_used_is_used(tmp_path: Path, module: str) -> None:
    files = {"train.py": f"import module\n{GUARD}", "nets.py": WRAP, "module.py": module}
    assert guess(tmp_path, files).entries == ["train.py"]


def test_what_is_imported_is_a_script_only_with_a_guard(tmp_path: Path) -> None:
    loop = "for i in range(3):\n    print(i)\n"
    files = {
        "train.py": f"import model, other, third\nmodel.wrap(1)\n{GUARD}",
        "model.py": f"{WRAP}{loop}",
        "other.py": f"{WRAP}wrap(1)\n{GUARD}",
        "third.py": f"{WRAP}",
        "test.py": "import torch\nnet = torch.nn.parallel.DataParallel(Net())\n",
    }
    assert guess(tmp_path, files).entries == ["other.py", "test.py", "train.py"]


def test_subclasses_count_where_they_are_called(tmp_path: Path) -> None:
    files = {
        "parallel.py": "from torch.nn import DataParallel\nclass Mine(DataParallel): pass\n",
        "train.py": f"from parallel import Mine\ndef main():\n    net = Mine(Net())\n{GUARD}",
        "check.py": f"import parallel\nif isinstance(net, parallel.DataParallel): pass\n{GUARD}",
    }
    found = guess(tmp_path, files)
    assert (found.entries, found.wraps) == (["train.py"], {"train.py": [3]})


def test_subclasses_of_subclasses_count_too(tmp_path: Path) -> None:
    files = {
        "parallel.py": "from torch.nn import DataParallel\nclass Mine(DataParallel): pass\n",
        "second.py": "from parallel import Mine\nclass Second(Mine): pass\n",
        "third.py": "import second\nclass Third(second.Second): pass\n",
        "train.py": f"from third import Third\nnet = Third(Net())\n{GUARD}",
    }
    assert guess(tmp_path, files).wraps == {"train.py": [2]}


def test_what_cant_be_read_is_told_and_no_script(tmp_path: Path) -> None:
    files = {
        "old.py": "print 'DataParallel'\n",
        "bytes.py": b"# DataParallel \xff\n",
        "fine.py": b"# \xff\n",
        "train.py": f"{WRAP}{GUARD}",
    }
    found = guess(tmp_path, files)
    assert found.entries == ["train.py"]
    assert [(error.file, error.line) for error in found.unread] == [("old.py", 1), ("bytes.py", 1)]


def test_files_that_dont_matter_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = syntax.parse
    monkeypatch.setattr(syntax, "parse", lambda text, name: parsed.append(name) or parse(text, name))
    other = {f"other_{number}.py": f"import os, other_1\n{GUARD}" for number in range(9)}
    guess(tmp_path, {**other, "train.py": f"import nets, helper\n{GUARD}", "nets.py": WRAP, "helper.py": ""})
    assert sorted(parsed) == ["helper.py", "nets.py", "train.py"]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import torch\nnet = torch.nn.DataParallel(net)", [2]),
        ("from torch.nn import DataParallel as DP\nnet = DP(net)", [2]),
        ("from torch.nn.parallel import data_parallel\ndata_parallel(net, x)", [2]),
        ("nn.parallel.data_parallel(net, x)", [1]),
        ("from torch.nn.parallel import data_parallel\ndata_parallel.data_parallel(net, x)", [2]),
        ("Mine(net); a.Mine(net)", [1, 1]),
        ("isinstance(net, nn.DataParallel)", []),
        ("nn.parallel.DistributedDataParallel(net)", []),
        ("self.data_parallel(x)", []),
        ("from apex import other as DP\nDP(net)", []),
        ("def data_parallel(x): pass\ndata_parallel(x)", []),
    ],
)
def test_wraps_are_calls(source: str, lines: list[int]) -> None:
    assert [call.lineno for call in wrapcalls.find(syntax.parse(source, "x.py"), {"Mine"})] == lines
