"""The measure of conversions over repositories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "benchmarks" / "corpus.py"
WRAP = "import torch.nn as nn\n\nnet = nn.DataParallel(Net())\n"


def test_every_script_is_judged(tmp_path: Path) -> None:
    files = {
        "one/train.py": WRAP,
        "one/part.py": f"{WRAP}net.features = nn.DataParallel(nn.Linear(4, 2))\n"
        "class Mine(nn.DataParallel):\n    def scatter(self): pass\nMine(net)\n",
        "one/old.py": "print 'DataParallel'\n",
        "one/plain.py": "for i in range(3): print(i)\n",
        "two/dist.py": f"import deepspeed\n{WRAP}",
        ".hidden/train.py": WRAP,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(CORPUS), ".", "--json", "out.json", "--markdown", "out.md", "--min", "90"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    scripts = {f"{each['repository']}/{each['path']}": each for each in data["scripts"]}
    assert set(scripts) == {"one/train.py", "one/part.py", "one/old.py", "two/dist.py"}
    assert scripts["one/train.py"]["lines"] == 5  # one changed, three added
    assert scripts["one/part.py"]["wraps_left"]
    assert scripts["one/old.py"]["refused"].startswith("old.py:1: Python 2")
    assert scripts["two/dist.py"]["refused"].startswith("dist.py:1: sets up distributed training already")
    total = {key: data["total"][key] for key in ("scripts", "refused", "tried", "converted", "percent", "crashes")}
    assert total == {"scripts": 4, "refused": 2, "tried": 2, "converted": 1, "percent": 50.0, "crashes": 0}
    assert "| one/train.py | yes | 1 | 5 |" in (tmp_path / "out.md").read_text()
