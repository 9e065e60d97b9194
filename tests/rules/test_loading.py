"""Files that the script writes and reads back: a rank must not read them before rank 0 is done."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import json, tempfile
from pathlib import Path
import cv2, h5py, numpy as np, pandas as pd, torch, torch.nn as nn
net = nn.DataParallel(nn.Linear(4, 2))
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("frame.to_csv('a.csv')\npd.read_csv('a.csv')", "pd.read_csv(ddp.written('a.csv'))"),
        ("cv2.imwrite('a.png', image)\nshown = cv2.imread('a.png', 0)", "cv2.imread(ddp.written('a.png'), 0)"),
        ("p = Path('a')\np.write_text('x')\nprint(p.read_text())", "print(ddp.written(p).read_text())"),
        (
            "with h5py.File('a.h5', 'w') as f:\n    f['x'] = 1\nx = h5py.File('a.h5', 'r')",
            "h5py.File(ddp.written('a.h5'), 'r')",
        ),
        ("open('a.json', 'w').write('1')\nx = np.loadtxt(fname='a.json')", "np.loadtxt(fname=ddp.written('a.json'))"),
        ("for i in range(3):\n    np.save(f'{i}.npy', x)\n    np.load(f'{i}.npy')", "np.load(ddp.written(f'{i}.npy'))"),
    ],
)  # fmt: skip
def test_what_the_script_writes_itself_is_waited_for(lines: str, expected: str) -> None:
    new = convert_source(_HEAD + "frame = pd.DataFrame()\n" + lines + "\n", "train.py", Options()).new_text
    assert expected in new, new


@pytest.mark.parametrize(
    "lines",
    [
        "x = np.load('a.npy')",
        "with h5py.File('a.h5', 'w') as f:\n    f['x'] = 1",
        "np.save('a.npy', 1)\nx = np.load('b.npy')",
        "d = tempfile.mkdtemp()\nnp.save(d + '/a.npy', 1)\nx = np.load(d + '/a.npy')",
    ],
)
def test_other_files_are_read_at_once(lines: str) -> None:
    assert "ddp.written" not in convert_source(_HEAD + lines + "\n", "train.py", Options()).new_text
