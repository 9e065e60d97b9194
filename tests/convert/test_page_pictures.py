"""The picture of a page in the documentation is of today's page; run as a script, this takes it anew."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from click.testing import CliRunner

from dp2ddp.cli import main

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/page.png"
SCRIPT = ROOT / "fixtures/mnist_script/train.py"
_WIDTH, _HEIGHT = 1280, 1500


def _page(folder: Path) -> Path:
    (folder / "train.py").write_bytes(SCRIPT.read_bytes())
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(main, ["convert", "train.py", "-o", "train_ddp.py", "--html", "report.html"])
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output
    return folder / "report.html"


def _mark(page: Path) -> bytes:
    """What the picture has of the page that it was taken of: a chunk of text, as PNG has it."""
    body = b"tEXtSource\0" + hashlib.sha256(page.read_bytes()).hexdigest().encode()
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def test_the_picture_is_of_the_page_as_it_is(tmp_path: Path) -> None:
    assert _mark(_page(tmp_path)) in PICTURE.read_bytes(), "python tests/convert/test_page_pictures.py takes it anew"


def _take() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import Browser

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = _page(folder)
        browser = Browser(folder / "profile")
        try:
            browser.open(page, width=_WIDTH)
            browser.resize(_WIDTH, _HEIGHT)
            browser.driver.save_screenshot(str(folder / "page.png"))
        finally:
            browser.close()
        picture = (folder / "page.png").read_bytes()
        header = len(b"\x89PNG\r\n\x1a\n") + 4 + 4 + 13 + 4  # the signature, and the first chunk
        PICTURE.write_bytes(picture[:header] + _mark(page) + picture[header:])


if __name__ == "__main__":
    _take()
