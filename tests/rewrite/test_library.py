"""What isn't edited stays to the byte, in the files of Python's own library."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.project import text_files
from dp2ddp.rewrite.apply import apply
from dp2ddp.rewrite.edits import InsertBefore
from dp2ddp.rules import Options
from dp2ddp.source.program import link

LIBRARY = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


@pytest.mark.parametrize("path", random.Random(0).sample(LIBRARY, 12), ids=lambda path: path.name)
def test_pythons_own_library_comes_back_unchanged(path: Path) -> None:
    source = text_files.read(str(path))
    conversion = convert_source(source.text, path.name, Options())
    assert source.encode(conversion.new_text) == path.read_bytes()
    # Nothing to convert means nothing rewritten, so rewrite the last line by force.
    script = link({path.name: source.text}, [path.name], lambda *asked: None)
    edits = [InsertBefore("DDP000", script.span(script.files[0].tree.body[-1]), "test", ["new()"])]
    changed = apply(source.text, edits)
    assert source.text in [changed.replace(line, "", 1) for line in ("new()\n", "new()\n\n")]
