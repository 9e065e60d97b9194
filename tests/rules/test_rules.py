"""Every rule's examples, run; the registry; the page that is made from them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Example, Rule, all_rules, rule
from dp2ddp.rules_doc import page

EXAMPLES, VALID = (
    [
        pytest.param(each, example, id=f"{each.id}-{number}")
        for each in all_rules()
        for number, example in enumerate(getattr(each, kind), start=1)
    ]
    for kind in ("examples", "valid")
)


@pytest.mark.parametrize(("each", "example"), EXAMPLES)
def test_an_example_converts_exactly(each: Rule, example: Example) -> None:
    options = example.options(each.id)
    done = convert_source(example.before, "before.py", options)
    new = done.new_text
    assert new == example.converted
    assert {finding.rule for finding in (*done.edits, *done.notes)} <= options.select
    assert all(edit.reason and "\n" not in edit.reason for edit in done.edits)
    assert all(note.what and note.todo for note in done.notes)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(("each", "example"), EXAMPLES)
def test_an_example_converts_once(each: Rule, example: Example, every: bool) -> None:
    own = example.options(each.id)
    options = replace(own, select=frozenset()) if every else own
    new = convert_source(example.before, "before.py", options).new_text
    compile(new, "after.py", "exec")
    assert convert_source(new, "after.py", options).new_text == new


@pytest.mark.parametrize(("each", "example"), VALID)
def test_what_a_rule_leaves_alone(each: Rule, example: Example) -> None:
    assert not example.diff
    assert re.search("DataParallel|data_parallel", example.before), "no rule is asked about such a script"
    compile(example.before, "valid.py", "exec")
    alone = example.options(each.id)
    for options in (alone, replace(alone, select=frozenset())):
        done = convert_source(example.before, "valid.py", options)
        assert not [finding for finding in (*done.edits, *done.notes) if finding.rule == each.id]


@pytest.mark.parametrize("each", all_rules(), ids=lambda each: each.id)
def test_a_rule_explains_itself(each: Rule) -> None:
    assert re.fullmatch(r"DDP\d{3}", each.id)
    assert each.examples
    assert each.valid, "it needs a script that it leaves alone"
    assert each.title[0].isupper()
    assert not each.title.endswith(".")
    assert len(each.title) <= 60
    assert 1 <= len(re.findall(r"[.!](?:\s|$)", each.why)) <= 5
    assert type(each).__doc__
    quiet = [example for example in each.examples if example.before == example.converted]
    assert all(convert_source(example.before, "before.py", example.options(each.id)).notes for example in quiet)


@pytest.mark.parametrize(("each", "example"), [param for param in EXAMPLES if not param.values[0].essential])
def test_what_an_ignored_rule_would_do_is_noted(each: Rule, example: Example) -> None:
    options = replace(example.options(each.id), select=frozenset())
    done = convert_source(example.before, "before.py", options)
    ignoring = convert_source(example.before, "before.py", replace(options, ignore=frozenset({each.id})))
    assert not [edit for edit in ignoring.edits if edit.rule == each.id]
    noted = {note.span for note in ignoring.notes if note.rule == each.id}
    assert noted == {finding.span for finding in (*done.edits, *done.notes) if finding.rule == each.id}


def test_rules_are_sorted_and_found_by_id() -> None:
    ids = [each.id for each in all_rules()]
    assert ids == sorted(set(ids))
    assert rule(ids[0].lower()) is all_rules()[0]
    assert rule("DDP999") is None


def test_the_page_of_rules_is_current() -> None:
    written = Path(__file__).parents[2].joinpath("docs", "rules.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m dp2ddp.rules_doc > docs/rules.md"
