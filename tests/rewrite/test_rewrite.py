"""The rewriter: every kind of edit, and that nothing else changes."""

from __future__ import annotations

import ast

import pytest

from dp2ddp.rewrite.apply import apply
from dp2ddp.rewrite.edits import (
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceExpr,
    ReplaceStatement,
)
from dp2ddp.source.spans import Position, Span


def at(source: str, snippet: str, nth: int = 0) -> Span:
    """The span of the `nth` occurrence of `snippet`."""
    offset = -1
    for _ in range(nth + 1):
        offset = source.index(snippet, offset + 1)
    return Span(_position(source, offset), _position(source, offset + len(snippet)))


def _position(source: str, offset: int) -> Position:
    before = source[:offset].replace("\r\n", "\n").replace("\r", "\n")
    return Position(before.count("\n") + 1, len(before) - before.rfind("\n") - 1)


def replaced(source: str, snippet: str, template: str, **holes: str) -> ReplaceExpr:
    span = at(source, snippet)
    inside = {name: _within(source, snippet, hole) for name, hole in holes.items()}
    return ReplaceExpr("DDP000", span, "a test", template, inside)


def _within(source: str, outer: str, inner: str) -> Span:
    offset = source.index(outer) + outer.index(inner)
    return Span(_position(source, offset), _position(source, offset + len(inner)))


WHY = "a test"


@pytest.mark.parametrize(
    ("source", "snippet", "template", "holes", "expected"),
    [
        ("x = f(a, b)\n", "f(a, b)", "g(__h_a__)", {"a": "a"}, "x = g(a)\n"),
        ("x = f(a + b)\n", "f(a + b)", "__h_a__ * 2", {"a": "a + b"}, "x = ((a + b) * 2)\n"),
        ("x = f((a + b))\n", "f((a + b))", "g(__h_a__)", {"a": "a + b"}, "x = g((a + b))\n"),
        ("x = (a).f(b)\n", "(a).f(b)", "__h_a__.g((b))", {"a": "a"}, "x = (a).g((b))\n"),
        ("x = (a  #\n .f(b))\n", "a  #\n .f(b)", "__h_a__()", {"a": "a  #\n .f"}, "x = (a  #\n .f())\n"),
        ("x = -f(a)\n", "f(a)", "__h_a__ if c else d", {"a": "a"}, "x = -(a if c else d)\n"),
        ("x = f(a) ** 2\n", "f(a)", "-__h_a__", {"a": "a"}, "x = (-a) ** 2\n"),
        ("x = f(a * b)\n", "f(a * b)", "__h_a__ + 2", {"a": "a * b"}, "x = ((a * b) + 2)\n"),
        ("x = f(a - b)\n", "f(a - b)", "c - __h_a__", {"a": "a - b"}, "x = (c - (a - b))\n"),
        ("x = f(a or b)\n", "f(a or b)", "__h_a__.item()", {"a": "a or b"}, "x = (a or b).item()\n"),
        ("x = f(1)\n", "f(1)", "__h_a__.item()", {"a": "1"}, "x = (1).item()\n"),
        ("x = f(a).b\n", "f(a)", "__h_a__ + 1", {"a": "a"}, "x = (a + 1).b\n"),
        ("x = 2 ** f(a)\n", "f(a)", "-__h_a__", {"a": "a"}, "x = 2 ** (-a)\n"),
        ("x = not f(a)\n", "f(a)", "a and b", {}, "x = not (a and b)\n"),
        ("x = a < f(b)\n", "f(b)", "b < c", {}, "x = a < (b < c)\n"),
        ("x = f(lambda: 1)\n", "f(lambda: 1)", "__h_a__ or b", {"a": "lambda: 1"}, "x = ((lambda: 1) or b)\n"),
        ("x = [f(a) for a in b if f(c)]\n", "f(c)", "a, b", {}, "x = [f(a) for a in b if (a, b)]\n"),
        ("for a in f(b): pass\n", "f(b)", "a, b", {}, "for a in (a, b): pass\n"),
        ("print(*f(a))\n", "f(a)", "a + b", {}, "print(*(a + b))\n"),
        ("async def f():\n    await g(a)\n", "g(a)", "a or b", {}, "async def f():\n    await (a or b)\n"),
        ("x = f(y := 1)\n", "f(y := 1)", "g(k=__h_a__)", {"a": "y := 1"}, "x = g(k=(y := 1))\n"),
        ("x = f((1, 2))\n", "(1, 2)", "g(__h_t__)", {"t": "(1, 2)"}, "x = f(g((1, 2)))\n"),
        ("f(\n  a +  #\n  b)\n", "f(\n  a +  #\n  b)", "__h_a__ * 2", {"a": "a +  #\n  b"}, "((a +  #\n  b) * 2)\n"),
        ("x = f(\n  a +\n  b)\n", "f(\n  a +\n  b)", "__h_a__", {"a": "a +\n  b"}, "x = (a +\n  b)\n"),
        ("x = y[f(a):]\n", "f(a)", "a if b else c", {}, "x = y[(a if b else c):]\n"),
        ('x = f"{a.module}"\n', "a.module", "__h_a__", {"a": "a"}, 'x = f"{a}"\n'),
    ],
)  # fmt: skip
def test_replaced_expressions(source: str, snippet: str, template: str, holes: dict[str, str], expected: str) -> None:
    new = apply(source, [replaced(source, snippet, template, **holes)])
    assert new == expected
    ast.parse(new)


def test_edits_of_one_expression_compose_in_list_order() -> None:
    source = "x = (f(a))\n"
    first = replaced(source, "f(a)", "g(__h_it__)", it="f(a)")
    second = replaced(source, "f(a)", "__h_it__ + 1", it="f(a)")
    assert apply(source, [first, second]) == "x = ((g(f(a)) + 1))\n"
    assert apply(source, [second, first]) == "x = (g(f(a) + 1))\n"


def test_a_statement_is_replaced_between_its_comments() -> None:
    source = "# above\nnet = f(x)  # beside\n\n# below\ny = 1\n"
    edit = ReplaceStatement("DDP000", at(source, "net = f(x)"), WHY, ["b = __h_x__", "c = b"], {"x": at(source, "x")})
    assert apply(source, [edit]) == "# above\nb = x\nc = b  # beside\n\n# below\ny = 1\n"


@pytest.mark.parametrize(
    ("source", "snippet", "expected"),
    [
        ("a = 1\nb = 2\nc = 3\n", "b = 2", "a = 1\nc = 3\n"),
        ("a = 1\n\nb = 2\n\nc = 3\n", "b = 2", "a = 1\n\n\nc = 3\n"),
        ("a = 1\n\n# on b\nb = 2\n\nc = 3\n", "b = 2", "a = 1\n\n# on b\n\nc = 3\n"),
        ("a = 1; b = 2; c = 3\n", "b = 2", "a = 1; c = 3\n"),
        ("if a:\n    b = 2\nc = 3\n", "b = 2", "if a:\n    pass\nc = 3\n"),
        ("@d\ndef f():\n    pass\nb = 1\n", "def f():\n    pass", "b = 1\n"),
    ],
)
def test_removed_statements(source: str, snippet: str, expected: str) -> None:
    assert apply(source, [RemoveStatement("DDP000", at(source, snippet), WHY)]) == expected


@pytest.mark.parametrize(
    ("source", "snippet", "before", "after"),
    [
        ("a; b = 2; c  # x\n", "b = 2", "a; new(); b = 2; c  # x\n", "a; b = 2; new(); c  # x\n"),
        ("if x: a = 1\n", "a = 1", "if x: new(); a = 1\n", "if x: a = 1; new()\n"),
        ("a = 1\n\n# on b\nb = 2\n", "b = 2", "a = 1\n\n# on b\nnew()\nb = 2\n", "a = 1\n\n# on b\nb = 2\nnew()\n"),
        (
            "def f():\n  for a in b:\n    c\n  # end\n\nd = 1\n",
            "for a in b:\n    c",
            "def f():\n  new()\n  for a in b:\n    c\n  # end\n\nd = 1\n",
            "def f():\n  for a in b:\n    c\n  new()\n  # end\n\nd = 1\n",
        ),
        ("#!/usr/bin/env python\n# on a\na = 1\n", "a = 1", "#!/usr/bin/env python\n# on a\nnew()\na = 1\n", None),
    ],
)  # fmt: skip
def test_inserted_statements(source: str, snippet: str, before: str, after: str | None) -> None:
    span = at(source, snippet)
    assert apply(source, [InsertBefore("DDP000", span, WHY, ["new()"])]) == before
    if after is not None:
        assert apply(source, [InsertAfter("DDP000", span, WHY, ["new()"])]) == after


def test_inserted_lines_take_the_files_indentation_and_order() -> None:
    source = "def f():\n\tx = 1\n"
    span = at(source, "x = 1")
    new = apply(
        source,
        [
            InsertBefore("DDP000", span, WHY, ["a()"]),
            InsertBefore("DDP000", span, WHY, ["b()"]),
            InsertAfter("DDP000", span, WHY, ["c()", "d()"]),
            InsertAfter("DDP000", span, WHY, ["e()"]),
        ],
    )
    assert new == "def f():\n\ta()\n\tb()\n\tx = 1\n\tc()\n\td()\n\te()\n"


def test_comments_are_inserted() -> None:
    source = "def f():\n    # on x\n    x = 1\n"
    assert apply(source, [InsertBefore("DDP000", at(source, "x = 1"), WHY, ["# TODO: look"])]) == (
        "def f():\n    # on x\n    # TODO: look\n    x = 1\n"
    )
    assert apply(source, [InsertAfter("DDP000", at(source, "x = 1"), WHY, ["# end"])]) == f"{source}    # end\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a\nimport b\n\nf()\n", "import a\nimport b\nimport dp2ddp_runtime as ddp\n\nddp.f()\n"),
        ('"""Doc."""\nf()\n', '"""Doc."""\n\nimport dp2ddp_runtime as ddp\nddp.f()\n'),
        (
            '"""Doc."""\nfrom __future__ import annotations\nf()\n',
            '"""Doc."""\nfrom __future__ import annotations\n\nimport dp2ddp_runtime as ddp\nddp.f()\n',
        ),
        (
            "import os\nos.environ['A'] = '0'\nimport b\n\nf()\nimport late\n",
            "import os\nos.environ['A'] = '0'\nimport b\nimport dp2ddp_runtime as ddp\n\nddp.f()\nimport late\n",
        ),
        (
            "from __future__ import a\n'Doc.'\n__a__ = __b__ = 1\n__c__ = 2\n__d__ = 3\n__e__ = 4\nimport b\nf()\n",
            "from __future__ import a\n'Doc.'\n__a__ = __b__ = 1\n__c__ = 2\n__d__ = 3\n__e__ = 4\nimport b\n"
            "import dp2ddp_runtime as ddp\nddp.f()\n",
        ),
        (
            "import a\ntry:\n    import b\nexcept ImportError:\n    b = None\nf()\n",
            "import a\ntry:\n    import b\nexcept ImportError:\n    b = None\nimport dp2ddp_runtime as ddp\nddp.f()\n",
        ),
        ("import a; b = f()\nc\n", "import dp2ddp_runtime as ddp\nimport a; b = ddp.f()\nc\n"),
        (
            "import a\ntry:\n    import b; f()\nexcept E:\n    b = 0\n",
            "import a\nimport dp2ddp_runtime as ddp\ntry:\n    import b; ddp.f()\nexcept E:\n    b = 0\n",
        ),
        (
            "import a\ndef g(): pass\nimport b\nf()\n",
            "import a\nimport dp2ddp_runtime as ddp\ndef g(): pass\nimport b\nddp.f()\n",
        ),
        ("import dp2ddp_runtime as ddp\nf()\n", "import dp2ddp_runtime as ddp\nddp.f()\n"),
        ("import a\nddp = 1\nf()\n", "import a\nimport dp2ddp_runtime\nddp = 1\ndp2ddp_runtime.f()\n"),
        ("import a\nx.ddp = g(ddp='')\nf()\n", "import a\nimport dp2ddp_runtime as ddp\nx.ddp = g(ddp='')\nddp.f()\n"),
    ],
)  # fmt: skip
def test_the_runtime_is_imported_once_where_imports_stand(source: str, expected: str) -> None:
    assert apply(source, [ReplaceExpr("DDP000", at(source, "f()"), WHY, "ddp.f()")]) == expected
