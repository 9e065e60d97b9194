"""A notebook as people write them on Kaggle trains the same, converted, also when the notebook itself starts it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import fixture_data
import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient

from dp2ddp.cli import main

NOTEBOOK = fixture_data.FIXTURES / "notebook" / "digits.ipynb"
TRAINING = """\
import torch
import torch.nn as nn

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
net = nn.DataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(data, 6, shuffle=True):
    loss = ((net(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.9f} in {globals()['ddp'].world_size() if 'ddp' in globals() else 1} processes")
torch.save(net.state_dict(), "net.pt")
"""


@pytest.mark.usefixtures("quick_starts")
def test_the_converted_notebook_trains_the_same_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(NOTEBOOK, tmp_path)
    done = CliRunner().invoke(main, ["verify", "digits.ipynb", "--nproc", "2"])
    assert done.exit_code == 0, done.output
    assert "They agree: 24 optimizer steps (same bits), 24 losses" in done.output
    assert os.listdir() == ["digits.ipynb"]


def test_a_notebook_starts_its_script_with_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    for name, value in {"DP2DDP_NPROC": "2", "DP2DDP_DEVICE": "cpu"}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"%env A=1\n!echo before\n{TRAINING}")])
    nbformat.write(notebook, "train.ipynb")
    assert CliRunner().invoke(main, ["convert", "train.ipynb", "--in-place"]).exit_code == 0
    converted = nbformat.read("train.ipynb", as_version=4)
    NotebookClient(converted, timeout=200, kernel_name="python3").execute()
    texts = ["".join(out.text for out in cell.outputs) for cell in converted.cells if cell.cell_type == "code"]
    assert texts[0].splitlines() == ["env: A=1", "before"]
    exec(TRAINING, {})  # as it was: one process
    expected = re.fullmatch(r"loss (\S+) in 1 processes\n", capsys.readouterr().out)
    (line,) = texts[-1].splitlines()
    found = re.fullmatch(r"loss (\S+) in 2 processes", line)
    assert expected is not None
    assert found is not None, texts
    assert float(found[1]) == pytest.approx(float(expected[1]), rel=1e-6)
