"""Files that are opened: by rank 0 for writing, by all for reading, whichever way the script opens them."""

from __future__ import annotations

import pytest

from dp2ddp.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = "import zipfile\nfrom pathlib import Path\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"

OPENED = {
    "with Path('log.csv').open('w') as f:\n    pass\n": "with ddp.open(Path('log.csv'), 'w') as f:",
    "f = (folder / 'a').open(mode='at', encoding='utf-8')\n": "ddp.open(folder / 'a', mode='at', encoding='utf-8')",
    "def save(x, path):\n    with path.open('wb', 0) as f:\n        f.write(x)\n": "with ddp.open(path, 'wb', 0) as f:",
    "p.open('w').write('x')\ntext = p.open().read()\n": "text = ddp.open(p).read()",
    "open('x.txt', 'w')\nprint(open('x.txt').read())\n": "print(ddp.open('x.txt').read())",
}
LEFT = [
    "text = Path('notes.txt').open().read()\n",
    "text = Path('notes.txt').open('rt').read()\n",
    "member = zipfile.ZipFile('a.zip').open('b.txt', 'r')\n",
    "archive.open('member', 'w')\n",
    "browser.open('https://x')\n",
    "path.open(*how)\n",
    "path.open(MODE)\n",
    "class Log:\n    def open(self, mode):\n        self.open('w')\nLog().open('a')\n",
    "class Mine(Base):\n    def open(self):\n        super().open('w')\n",
]


def _converted(text: str) -> str:
    return convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP011"}))).new_text


@pytest.mark.parametrize("text", OPENED)
def test_opened_by_the_runtime(text: str) -> None:
    assert OPENED[text] in _converted(text)


@pytest.mark.parametrize("text", LEFT)
def test_left_alone(text: str) -> None:
    assert _converted(text) == _HEAD + text
