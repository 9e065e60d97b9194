"""What `setup` and a wrap replace of Python and torch: no more than the runtime's tables say, and the page has them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import starts

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
MOST = 45
_BEGIN = "| replaced | by | because |\n|---|---|---|\n"
#: Each module's table, and what really changed on any of two ranks; `hold` is what a rank does that has a GPU.
_SCRIPT = """
import bz2, getpass, json, os, sys, tarfile, types
import click.termui
import numpy as np
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp
from dp2ddp_runtime import files, gpus, hangs, quiet, signals, streams

STDLIB = getattr(sys, "stdlib_module_names", ("os", "sys", "io", "builtins", "shutil", "subprocess"))
WATCHED = ("torch", "torch.jit._script", "torch.random", "torch.serialization", "torch.nn.functional",
           "torch.nn.modules.module", "torch.utils.data.dataloader", "torch.optim.optimizer",
           "torch.distributed", "torch.cuda")


def held():
    found = {}
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in (*STDLIB, "numpy", "click") or name in WATCHED:
            for key, value in [*vars(module).items()] if isinstance(module, types.ModuleType) else ():
                if callable(value) or key in ("stdin", "stdout", "stderr"):
                    found[f"{name}.{key}"] = value
                if isinstance(value, type) and value.__module__ == name:
                    found.update((f"{name}.{key}.{each}", method) for each, method in vars(value).items())
    return found


before = held()
ddp.setup()
net = ddp.wrap_model(nn.Linear(2, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = ddp.shard_loader(torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4))
for x in loader:
    net(x).sum().backward()
    optimizer.step()
gpus.hold({"CUDA_VISIBLE_DEVICES": "1,0"})
after = held()
changed = [name for name, value in before.items() if name in after and after[name] is not value]
changed = sorted(set().union(*ddp.gather(changed)))
tables = {each.__name__.rpartition(".")[2]: each.REPLACED for each in (files, gpus, hangs, quiet, signals, streams)}
named = {name for table in tables.values() for name in table}
doors = [before[name] for name in named if name in before]
other = [name for name in changed if name not in named and any(before[name] is each for each in doors)]
print(json.dumps([tables, changed, other]))
"""


@pytest.fixture(scope="module")
def told(warm: starts.Warm, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _told(warm, tmp_path_factory.mktemp("replaced"))


def _told(warm: starts.Warm, folder: Path) -> Any:
    (folder / "train.py").write_text(_SCRIPT)
    done = warm.start(folder / "train.py", forked=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_what_the_tables_say_is_replaced(told: Any) -> None:
    tables, changed, other_names = told
    named = {name for table in tables.values() for name in table}
    assert len(named) <= MOST
    # Modules that keep a function under a name of their own get the same stand-in; so does pathlib before Python 3.11.
    of_pathlib = {name for name in changed if name.startswith("pathlib._NormalAccessor.")}
    assert set(changed) - set(other_names) - of_pathlib == named


def _table(tables: dict[str, dict[str, str]]) -> str:
    """A row for each reason."""
    rows: list[tuple[list[str], str, str]] = []
    for module, table in tables.items():
        for name, reason in table.items():
            if rows and rows[-1][1:] == (module, reason if reason != "the same" else rows[-1][2]):
                rows[-1][0].append(name)
            else:
                rows.append(([name], module, reason))
    return _BEGIN + "".join(
        f"| {', '.join(f'`{name}`' for name in names)} | `{module}.py` | {reason} |\n" for names, module, reason in rows
    )


def test_the_page_has_the_tables(told: Any) -> None:
    table = _table(told[0])
    assert f"{table}\n" in PAGE, f"python tests/test_replaced.py writes it:\n{table}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        warm = starts.Warm(Path(folder))
        table = _table(_told(warm, Path(folder))[0])
        warm.close()
    start, _, rest = PAGE.partition(_BEGIN)
    (ROOT / "docs/architecture.md").write_text(f"{start}{table}\n{rest.partition(chr(10) * 2)[2]}", "utf-8")
