"""Which file an import means, and which files a script is made of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import write

from dp2ddp.project.modules import Layout


def reached(files: Mapping[str, str], entry: str = "train.py") -> list[str]:
    return Layout(files).reachable(entry)


@pytest.mark.parametrize(
    ("statement", "files"),
    [
        ("import a.b.c", ["a/__init__.py", "a/b/__init__.py", "a/b/c.py"]),
        ("from a import b", ["a/__init__.py", "a/b.py"]),
        ("from a import *", ["a/__init__.py"]),
        ("def f():\n    import a", ["a.py"]),
        ("import importlib\nm = importlib.import_module('a.b')", ["a/b.py"]),
        ("m = __import__('a')", ["a.py"]),
        ("m = import_class('a.b.Net')", ["a/b.py"]),
        ("m = loadmodule('a.' + name[0], 'Net')", ["a/b.py", "a/c.py"]),
        ("m = import_module(f'a.{name}')", ["a/__init__.py", "a/b.py"]),
        ("m = import_module('a.{}.x'.format(name))", ["a/__init__.py", "a/b.py"]),
        ("m = import_module('a.' + name)", ["a/b.py", "a/c.py"]),
    ],
)
def test_imports_lead_to_files(statement: str, files: list[str]) -> None:
    project = {"train.py": statement, "unused.py": "import a", **dict.fromkeys(files, "")}
    assert set(reached(project)) == {"train.py", *files}


@pytest.mark.parametrize(
    "statement", ["import b", "import a.c", "from .. import a", "from a.b import c", "import json"]
)
def test_what_is_not_the_projects_is_no_file(statement: str) -> None:
    files = {"train.py": statement, "a.py": "", "x/json.py": "", "y/b.py": "", "z/b.py": ""}
    assert reached(files) == ["train.py"]


@pytest.mark.parametrize(
    "adding",
    [
        "sys.path += ['lib', '.']",
        "sys.path.append(str(Path(__file__).resolve().parent.parent / 'lib'))",
        "sys.path.append(os.path.join(os.path.split(os.path.realpath(__file__))[0], os.pardir, 'lib'))",
        "me = inspect.getfile(inspect.currentframe())\nsys.path.append(os.path.dirname(me) + '/../lib')",
        "sys.path.append(os.path.join(os.getcwd(), 'lib'))",
        "def add(path): sys.path.insert(0, path)\nadd(os.path.join(os.path.dirname(__file__), '..', 'lib'))",
    ],
)
def test_folders_that_the_script_adds_are_looked_in(adding: str) -> None:
    files = {
        "tools/train.py": "import _init_paths\nimport core",
        "tools/_init_paths.py": f"import sys\n{adding}\n",
        "lib/core/__init__.py": "",
        "other/core.py": "",
    }
    assert reached(files, "tools/train.py") == ["tools/train.py", "tools/_init_paths.py", "lib/core/__init__.py"]


def test_circles_end() -> None:
    files = {"train.py": "from a import *", "a.py": "from b import *", "b.py": "from a import *\nimport train"}
    assert reached(files) == ["train.py", "a.py", "b.py"]
    package = {
        "train.py": "from p import x",
        "p/__init__.py": "from .q import *",
        "p/q.py": "from . import *",
        "p/x.py": "",
    }
    assert reached(package) == ["train.py", "p/__init__.py", "p/x.py", "p/q.py"]


def test_python_agrees(tmp_path: Path) -> None:
    """The files of a program are those that Python loads from the project."""
    files = {
        "tools/train.py": "import _init_paths, engine\nfrom nets import build, resnet\nfrom nets.parts import block\n",
        "tools/_init_paths.py": "import os, sys\nsys.path.insert(0, os.path.dirname(__file__) + '/../lib')\n",
        "lib/engine.py": "from helpers.meters import Meter\nimport nets.parts.head as head\n",
        "lib/nets/__init__.py": "from .resnet import *\nfrom .factory import build\n",
        "lib/nets/resnet.py": "from . import vgg\n__all__ = ['resnet']\ndef resnet(): pass\n",
        "lib/nets/vgg.py": "from .parts import block\n",
        "lib/nets/factory.py": "def build():\n    pass\n",
        "lib/nets/parts/__init__.py": "",
        "lib/nets/parts/block.py": "",
        "lib/nets/parts/head.py": "",
        "lib/nets/unused.py": "",
        "lib/helpers/meters.py": "class Meter: pass\n",
        "helpers/meters.py": "",
        "engine.py": "",
    }
    write(tmp_path, files)
    code = (
        "import runpy, sys\nsys.path[0] = 'tools'\nrunpy.run_path('tools/train.py')\n"
        "print(*(getattr(m, '__file__', None) for m in sys.modules.values()), sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ}
    )
    lines = [os.path.realpath(tmp_path / line) for line in done.stdout.splitlines() if line != "None"]
    root = os.path.realpath(tmp_path) + os.sep
    loaded = {os.path.relpath(line, root) for line in lines if line.startswith(root)}
    assert set(reached(files, "tools/train.py")) == loaded | {"tools/train.py"}
