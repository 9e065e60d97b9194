"""A project whose conversion is stubbed: what becomes of folders and scripts is looked at, not what a rule does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import Result
from commands import command, write

from dp2ddp.convert import pipeline
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.errors import BadInput
from dp2ddp.project.modules import Layout
from dp2ddp.rewrite.edits import Note, RemoveStatement
from dp2ddp.rules import Options
from dp2ddp.source.spans import Span

GUARD = "if __name__ == '__main__':\n    wrap()\n"
FILES = {
    "train.py": f"from nets import wrap\nimport utils.loaders, plain\n{GUARD}",
    "tools/test.py": f"import sys\nsys.path.append('..')\nfrom nets import wrap\n{GUARD}",
    "nets.py": "from torch import nn\ndef wrap(net):\n    return nn.DataParallel(net)\n",
    "utils/loaders.py": "loader = OLD\n",
    "plain.py": "x = 1\n",
    "unrelated.py": "y = OLD\n",
    "README.md": "OLD DataParallel",
}
SPAN = Span.of(1, 0, 1, 1)


def new(text: str) -> str:
    return text.replace("nn.DataParallel", "dp2ddp_runtime.wrap_model").replace("OLD", "NEW")


def stub(files: Mapping[str, str], entries: Sequence[str], options: Options) -> dict[str, Conversion]:
    """Rewrites every file of the programs; refuses what says REFUSED, has a note for what says ODD."""
    layout = Layout(files)
    found: dict[str, Conversion] = {}
    for entry in entries:
        for path in layout.reachable(entry):
            text = files[path]
            if "REFUSED" in text:
                raise BadInput(path, line=1, what="it is refused")
            is_changed = new(text) != text
            edits = [RemoveStatement("DDP001", SPAN, "because")] if is_changed else []
            notes = [Note("DDP008", SPAN, "it is odd", "look at it")] if "ODD" in text else []
            found[path] = Conversion(new(text), edits, notes, changed=is_changed, old_text=text)
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the folder "project" of the current folder."""
    monkeypatch.setattr(pipeline, "convert_files", stub)
    monkeypatch.chdir(tmp_path)
    write(Path("project"), FILES)
    return Path("project")


def read(folder: Path | str) -> dict[str, str]:
    """All files below a folder, but for the runtime's."""
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and "dp2ddp_runtime" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def run(*args: str) -> Result:
    return command("convert", *args)


CONVERTED = {path: new(text) if path not in ("unrelated.py", "README.md") else text for path, text in FILES.items()}
