"""Text and positions of a libcst tree, in one walk: libcst's own, to the last column."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from dp2ddp.rewrite.written import written

SCRIPTS = sorted((Path(__file__).parents[2] / "fixtures").glob("*/train.py"))
TEXTS = ["x = 1\r\ny = '''\r\na'''\r\n", "if x:\n\tpass", "# only\n\n", "", "\n", "x = (1,\n  2)"]


@pytest.mark.parametrize("text", [*TEXTS, *(pytest.param(s.read_text(), id=s.parent.name) for s in SCRIPTS)])
def test_as_libcst_has_it(text: str) -> None:
    module = cst.parse_module(text)
    code, positions, _ = written(module)
    assert code == module.code
    assert dict(positions) == dict(MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider))
