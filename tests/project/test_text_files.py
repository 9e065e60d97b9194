"""Reading and writing scripts: every byte kept, every kind of bad input named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp2ddp.errors import BadInput
from dp2ddp.project import text_files
from dp2ddp.source import syntax


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        (b"x = 1\r\ny = 2\n", "utf-8", "x = 1\r\ny = 2\n"),
        (b"\xef\xbb\xbfx = '\xc3\xa9'\n", "utf-8-sig", "x = 'é'\n"),
        (b"\xef\xbb\xbf# coding: utf-8-sig\n", "utf-8-sig", "# coding: utf-8-sig\n"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "iso-8859-1", "# -*- coding: latin-1 -*-\nx = 'é'\n"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '\x80'\n", "cp1252", None),
        (b"x = 1\n# coding: latin-1\n", "utf-8", "x = 1\n# coding: latin-1\n"),
        (b"\n# coding: latin-1\nx = '\xe9'\n", "iso-8859-1", "\n# coding: latin-1\nx = 'é'\n"),
        (b"x = 1\r", "utf-8", "x = 1\r"),
        ("# coding: gbk\nx = '中'\n".encode("gbk"), "gbk", "# coding: gbk\nx = '中'\n"),
    ],
)
def test_bytes_are_read_and_written_back(data: bytes, encoding: str, text: str | None) -> None:
    source = text_files.decode(data, "train.py", None)
    assert source.encoding == encoding
    assert text is None or source.text == text
    assert source.encode(source.text) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1\ny = '\xe9'\n", "train.py:2: the byte 0xe9 is not utf-8; save it as UTF-8"),
        ("x = 1\ny = 'é".encode() + b"\xe9'\n", "train.py:2: the byte 0xe9 is not utf-8"),
        (b"# coding: ascii\nx = '\xe9'\n", "train.py:2: the byte 0xe9 is not ascii"),
        (b"# coding: klingon\n", "train.py: unknown encoding: klingon; save it as UTF-8"),
        (b"# coding: rot13\n", "train.py: 'rot13' is not a text encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "train.py: encoding problem: utf-8"),
        (b"# coding: utf-7\nx = '+AGE-'\n", "train.py: the encoding utf-7 can't be written back unchanged"),
        (b"\x7fELF\x02\x00\x00", "train.py: a binary file, not a Python script"),
        ("x = 1\n".encode("utf-16"), "train.py: a binary file, not a Python script; if it is UTF-16, save it as UTF-8"),
        (
            b'{"cells": [], "metadata": {}, "nbformat": 4}',
            "train.py: a notebook, not a script; give it by a name that ends in .ipynb",
        ),
    ],
)
def test_bytes_that_are_no_script_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        text_files.decode(data, "train.py", None)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = )\n", "train.py:2:5: syntax error: "),
        ("def f():\nreturn 1\n", "train.py:2:1: syntax error: expected an indented block"),
        ("if x:\n\ty\n        z\n", "train.py:3"),
        ('import os\nprint "epoch", 1\n', "train.py:2: Python 2 (the print statement); bring it to Python 3 first"),
        ("import sys\nprint >>sys.stderr, x\ny = (\n", "train.py:2: Python 2 (the print statement)"),
        ("try:\n    f()\nexcept (A, B), e:\n    print 'x'\n", "train.py:3: Python 2 (`except X, e`)"),
        (
            "x = (1,\n<<<<<<< HEAD\n2)\n=======\n3)\n>>>>>>> b\n",
            "train.py:2: a merge conflict marker; resolve the conflict",
        ),
        ("raise ValueError, 'x'\n", "train.py:1: Python 2 (`raise X, y`)"),
        ("exec 'x = 1'\n", "train.py:1: Python 2 (the exec statement)"),
        ("x = `1`\n", "train.py:1: Python 2 (backquotes)"),
        ("if a <> b: pass\n", "train.py:1: Python 2 (`<>`)"),
        ("os.chmod(f, 0755)\n", "train.py:1: Python 2 (an octal number such as 0777)"),
        ("x = 10L\n", "train.py:1: Python 2 (a long number such as 10L)"),
        ("x = ur'a'\n", "train.py:1: Python 2 (a string such as ur'')"),
        ("def f(a, (b, c)): pass\n", "train.py:1: Python 2 (unpacking in parameters)"),
        ("x = " + "(" * 3000 + ")" * 3000, "train.py"),
    ],
)
def test_syntax_errors_have_a_place_and_python_2_is_named(source: str, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        syntax.parse(source, "train.py")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def _check(path: Path, source: text_files.TextFile) -> None:
    text_files.check_new(path, source.path, force=False)
    text_files.check_writable(path)
