"""Two versions side by side: every line once, in order, what belongs together in one row; edits in their place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from dp2ddp.convert import diffs
from dp2ddp.convert.diffs import hunks, rows
from dp2ddp.convert.page.diff_content import CHANGED, FOLDED, SAME, Section, Shown
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.reporting import File
from dp2ddp.page.rendering import marked
from dp2ddp.rewrite.edits import Edit, InsertAfter, InsertBefore
from dp2ddp.source.spans import Span

_LINES = st.lists(st.sampled_from(["a = 1", "b(a)", "", "    b(a)", "c", "save(net)", "ddp.save(net)"]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(_LINES, _LINES)
def test_every_line_of_both_is_there_once_and_in_order(old: list[str], new: list[str]) -> None:
    found = list(rows(old, new))
    assert [row.old for row in found if row.old] == list(range(1, len(old) + 1))
    assert [row.new for row in found if row.new] == list(range(1, len(new) + 1))
    for row in found:
        assert row.same == (row.old is not None and row.new is not None and old[row.old - 1] == new[row.new - 1])


def test_what_differs_within_a_line_is_marked() -> None:
    before, after = marked("torch.save(net, '<p>')", "ddp.save(net,  '<p>')")
    assert before == Markup("<mark>torch</mark>.save(net, &#39;&lt;p&gt;&#39;)")
    assert after == Markup("<mark>ddp</mark>.save(net,  &#39;&lt;p&gt;&#39;)"), "white space is not marked"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\r\nb\rc\n\n", ["a", "b", "c", ""]),
        ("a\x0cb\u2028c\n", ["a\x0cb\u2028c"]),
    ],
)
def test_lines_are_python_s(text: str, lines: list[str]) -> None:
    assert diffs.lines_of(text) == lines


def _edit(rule: str, line: int, end: int | None = None) -> Edit:
    return Edit(rule, Span.of(line, 0, end or line, 5), "because")


def _sections(old: Sequence[str], new: Sequence[str], edits: Sequence[Edit] = ()) -> list[Section]:
    conversion = Conversion("\n".join(new), edits, changed=True, old_text="\n".join(old))
    return list(Shown("f0", "a.py", File("a.py", None, conversion), True).sections())


def test_what_is_far_from_changes_is_folded() -> None:
    old = [f"line {n}" for n in range(1, 41)]
    found = _sections(old, [*old[:19], "other", *old[20:]], [_edit("DDP001", 20)])
    assert [each.kind for each in found] == [FOLDED, SAME, CHANGED, SAME, FOLDED]
    assert [len(each.lines) for each in found] == [16, 3, 2, 3, 17]
    assert [rule.id for rule, _ in found[2].reasons] == ["DDP001"]


def test_a_change_is_as_small_as_its_edits() -> None:
    old = ["save(a)", "save(b)", "data = load(", "    c)", "loader = make(", "    data)"]
    new = [
        "setup()",
        "ddp.save(a)",
        "ddp.save(b)",
        "with first():",
        "    data = load(",
        "        c)",
        *old[4:],
        "shard()",
    ]
    span = Span.of(1, 0, 1, 7)
    first, last = (
        InsertBefore("DDP001", span, "", ["setup()"]),
        InsertAfter("DDP005", Span.of(5, 0, 6, 9), "", ["shard()"]),
    )
    edits = [first, _edit("DDP008", 1), _edit("DDP008", 2), _edit("DDP012", 3, 4), last]
    found = [(each.old, each.new, [edit.rule for edit in each.edits]) for each in hunks(list(rows(old, new)), edits)]
    assert found == [
        ([1], [1, 2], ["DDP001", "DDP008"]),
        ([2], [3], ["DDP008"]),
        ([3, 4], [4, 5, 6], ["DDP012"]),
        ([], [9], ["DDP005"]),
    ]
