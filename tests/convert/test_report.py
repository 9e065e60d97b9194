"""What the summary of a conversion says, and how long it is."""

from __future__ import annotations

from pathlib import Path

from commands import command


def test_notes_that_say_the_same_are_one_line_and_many_are_cut_unless_verbose(tmp_path: Path) -> None:
    asks = "".join(f"        a = x.get_device() + {number}\n" for number in (*range(20), 3, 3))
    script = tmp_path / "train.py"
    script.write_text(
        f"import torch.nn as nn\nclass Net(nn.Module):\n    def forward(self, x):\n{asks}net = nn.DataParallel(Net())\n"
    )
    said = command("convert", str(script)).stderr.splitlines()
    assert said[1] == "22 notes for a person to look at (`dp2ddp rules ID` says why):"
    assert "  train.py:7, 24, 25  DDP016  `x.get_device() + 3` asks which GPU" in said[5]
    assert [line.strip() for line in said[9:10]] == ["and 13 more, which --verbose shows"]
    verbose = command("convert", str(script), "-v").stderr
    assert verbose.count("` asks which GPU") == 20


def test_one_script_s_summary_is_ten_lines_and_says_no_absolute_path_twice(tmp_path: Path) -> None:
    loaders = "".join(f"torch.utils.data.DataLoader([{n}])\n" for n in range(9))
    odd = "".join(f"def f{n}():\n    loss.data[0]\n" for n in range(30))
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{loaders}net = torch.nn.DataParallel(net, device_ids=[0, 1, 2])\n{odd}")
    said = command("convert", str(script), "-o", str(tmp_path / "out.py")).stderr
    assert len(said.splitlines()) <= 10
    assert said.count(str(tmp_path)) == 2  # what is read, and what is to be run
    assert f"Run it: python {tmp_path / 'out.py'}   # 3 processes, one on each GPU of `device_ids`; to try it" in said
