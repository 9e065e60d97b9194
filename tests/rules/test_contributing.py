"""CONTRIBUTING.md's rule works to the letter."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dp2ddp import rules
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options, Rule

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rule]:
    """The page's rule, among the others."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "told.py"
    path.write_text(textwrap.dedent(code))
    spec = spec_from_file_location("dp2ddp.rules.told", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "dp2ddp.rules.told", module)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    rules.all_rules.cache_clear()
    found = rules.rule("DDP099")
    assert found is not None
    yield found
    monkeypatch.undo()
    rules.all_rules.cache_clear()


def test_the_rule_of_the_page_does_what_it_says(told: Rule) -> None:
    for example in told.examples:
        assert convert_source(example.before, "before.py", example.options(told.id)).new_text == example.converted
    for example in told.valid:
        done = convert_source(example.before, "valid.py", Options())
        assert not [finding for finding in (*done.edits, *done.notes) if finding.rule == told.id]
