"""Properties of rewriting, on scripts that hypothesis makes up and on Python's own library."""

from __future__ import annotations

import ast
import copy
import random
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.project import text_files
from dp2ddp.rewrite.apply import apply
from dp2ddp.rewrite.edits import Edit, InsertAfter, InsertBefore, RemoveStatement, ReplaceExpr
from dp2ddp.rules import Options
from dp2ddp.source.program import ParsedProgram, link

SETTINGS = settings(max_examples=150, deadline=None)

# Expressions: anything around calls of `f`, which are what gets edited.
_OPERATORS = ["+", "-", "*", "@", "//", "**", "<<", "&", "|", "<", "in", "is not", "and", "or"]
_ATOMS = ["a", "1", "'é'", "a.b", "x[0]", "(1, 2)", "()", "[i for i in a]", "f(i for i in a)", "{'k': 2}", "-1"]


_COMPOUND = [
    "f({0})", "f(\n    {0},  # why\n  b)", "({0})", "(  # why\n  {0}\n)", "({0} OP {1})", "({0} OP {1})", "(not {0})",
    "(-f({0}) ** 2)", "({0} if {1} else {0})", "(lambda z: {0})", "[{0}, *f({1})]", "(f({0})).c[f({1}):]",
    "[{0} for j in f({1}) if f({0})]",
]  # fmt: skip


@st.composite
def _compound(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    shape = draw(st.sampled_from(_COMPOUND)).replace("OP", draw(st.sampled_from(_OPERATORS)))
    return shape.replace("{0}", draw(inner)).replace("{1}", draw(inner))


def _without_parentheses(text: str) -> str:
    """`text` without the pair around it, where it means the same without."""
    if text.startswith("(") and text.endswith(")") and "\n" not in text:
        try:
            if ast.dump(ast.parse(text)) == ast.dump(ast.parse(text[1:-1])):
                return text[1:-1]
        except SyntaxError:
            pass
    return text


EXPRESSIONS = st.recursive(st.sampled_from(_ATOMS), _compound, max_leaves=6).map(_without_parentheses)
_SIMPLE = st.one_of(
    st.builds("x = {}".format, EXPRESSIONS),
    st.builds("f({})".format, EXPRESSIONS),
    st.builds("y = 1; x = {}; z = 2".format, EXPRESSIONS),
    st.builds("return {}".format, EXPRESSIONS),
    st.builds("if a: x = {}".format, EXPRESSIONS),
    st.sampled_from(["pass", "s = '''one\n  two\n'''", "x = 1  # why", "x = 1 ;", "x = a + \\\n      b", "import os"]),
)
_HEADERS = ["if f(a):", "for i in f(a):", "while f(a):", "with f(a) as h:", "def g(a, b=f(1)):", "class C(f(a)):"]
_BETWEEN = ["", "", "\n", "# why\n", "\n# why\n\n"]


@st.composite
def _blocks(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    def block() -> str:
        lines = "\n".join(draw(st.lists(inner, min_size=1, max_size=3)))
        return _indent(lines, draw(st.sampled_from(["  ", "    ", "\t"])))

    kind = draw(st.sampled_from(["if", "try", *_HEADERS]))
    if kind == "if":
        return f"if a:\n{block()}\nelif b:\n{block()}\nelse:\n{block()}"
    if kind == "try":
        return f"try:\n{block()}\nexcept E:\n{block()}"
    return f"{draw(st.sampled_from(_BETWEEN))}{kind}\n{block()}"


def _indent(block: str, unit: str) -> str:
    inside_string = False
    lines = []
    for line in block.split("\n"):
        lines.append(line if inside_string or not line else unit + line)
        inside_string ^= line.count("'''") % 2 == 1
    return "\n".join(lines)


_STATEMENTS = st.recursive(st.builds("{}{}".format, st.sampled_from(_BETWEEN), _SIMPLE), _blocks, max_leaves=8)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """The text of a script: a function body, so that `return` may stand anywhere."""
    body = "\n".join(draw(st.lists(_STATEMENTS, min_size=1, max_size=4)))
    tail = draw(st.sampled_from(["", "\n", "\n\n", "\n   \n\t\n", "\n# end", "\n\x0c\n"]))
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    return (f"def outer():\n{_indent(body, '    ')}{tail}").replace("\n", newline)


TEMPLATES = [
    "__h_e__", "g(__h_e__)", "g(k=__h_e__)", "-__h_e__", "not __h_e__", "__h_e__ * 2", "2 - __h_e__", "__h_e__ ** 2",
    "2 ** __h_e__", "__h_e__.c", "__h_e__[0]", "a[__h_e__]", "__h_e__ or b", "a and __h_e__", "a < __h_e__",
    "a if __h_e__ else b", "__h_e__ if a else b", "lambda: __h_e__", "[__h_e__, 1]", "(__h_e__, 1)", "{1: __h_e__}",
    "[k for k in __h_e__]", "a.b", "a, b",
]  # fmt: skip


class _Fill(ast.NodeTransformer):
    """Fills the hole of a template, on Python's own tree."""

    def __init__(self, piece: ast.expr) -> None:
        self.piece = piece

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.piece if node.id == "__h_e__" else node


class _Oracle(ast.NodeTransformer):
    """The same edits on Python's own tree, where there are no parentheses to get wrong."""

    def __init__(self, templates: Mapping[ast.AST, str], statements: Mapping[ast.AST, str]) -> None:
        self.templates = templates
        self.statements = statements

    def visit(self, node: ast.AST) -> ast.AST:
        edited: ast.AST = self.generic_visit(node)
        if node in self.templates:
            assert isinstance(edited, ast.Call)
            return _Fill(edited.args[0]).visit(ast.parse(self.templates[node], mode="eval").body)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(edited, name, None)
            if isinstance(block, list) and block:
                setattr(edited, name, [new for each in block for new in self._edited(each)])
                if not getattr(edited, name) and not isinstance(edited, ast.Module):
                    setattr(edited, name, [ast.Pass()])
        return edited

    def _edited(self, statement: ast.stmt) -> list[ast.stmt]:
        kind = self.statements.get(statement, "")
        if kind == "remove":
            return []
        new = ast.parse("new()").body
        return {"before": [*new, statement], "after": [statement, *new]}.get(kind, [statement])


def _flat(tree: ast.AST) -> str:
    """The tree as text; nested chains of `and` and of `or` mean the same as flat ones."""

    class Flatten(ast.NodeTransformer):
        def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
            self.generic_visit(node)
            values: list[ast.expr] = []
            for value in node.values:
                same = isinstance(value, ast.BoolOp) and isinstance(value.op, type(node.op))
                values += value.values if same else [value]
            return ast.BoolOp(node.op, values)

    return ast.dump(Flatten().visit(copy.deepcopy(tree))).replace("Store()", "Load()")


def _draw_edits(
    data: st.DataObject, source: ParsedProgram
) -> tuple[list[Edit], dict[ast.AST, str], dict[ast.AST, str]]:
    templates: dict[ast.AST, str] = {}
    statements: dict[ast.AST, str] = {}
    edits: list[Edit] = []
    for call in source.calls:
        if isinstance(call.func, ast.Name) and call.func.id == "f" and data.draw(st.booleans()):
            templates[call] = template = data.draw(st.sampled_from(TEMPLATES))
            holes = {"e": source.span(call.args[0])} if "__h_e__" in template else {}
            edits.append(ReplaceExpr("DDP000", source.span(call), "test", template, holes))
    kinds = st.sampled_from(["", "", "", "remove", "before", "after"])
    for node in source.nodes:
        if not isinstance(node, ast.stmt) or _is_elif(source, node):
            continue
        kind = data.draw(kinds)
        if kind:
            statements[node] = kind
            edits.append(_statement_edit(source, node, kind))
    return edits, templates, statements


def _statement_edit(source: ParsedProgram, node: ast.stmt, kind: str) -> Edit:
    span = source.span(node)
    if kind == "remove":
        return RemoveStatement("DDP000", span, "test")
    return (InsertBefore if kind == "before" else InsertAfter)("DDP000", span, "test", ["new()"])


def _is_elif(source: ParsedProgram, node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and source.segment(node).startswith("elif")


def _untouched(source: ParsedProgram, edits: Sequence[Edit]) -> list[str]:
    """The lines, but for blank ones, that hold no part of anything edited."""
    touched = {line for edit in edits for line in range(edit.span.start.line, edit.span.end.line + 1)}
    lines = enumerate(source.lines, start=1)
    return [line for number, line in lines if number not in touched and line.strip()]


@SETTINGS
@given(scripts(), st.data())
def test_edits_do_what_they_say_and_nothing_else(script: str, data: st.DataObject) -> None:
    source = link({"script.py": script}, ["script.py"], lambda *asked: None)
    edits, templates, statements = _draw_edits(data, source)
    untouched = _untouched(source, edits)
    new = apply(script, edits)

    assert _flat(ast.parse(new)) == _flat(_Oracle(templates, statements).visit(source.files[0].tree))
    rest = iter(new.replace("\r\n", "\n").split("\n"))
    for line in untouched:
        assert line in rest, f"{line!r} is gone, or out of order"
    if "\r\n" in script:
        assert new.count("\n") == new.count("\r\n")


@SETTINGS
@given(scripts())
def test_edits_that_change_nothing_give_every_byte_back(script: str) -> None:
    source = link({"script.py": script}, ["script.py"], lambda *asked: None)
    calls = [node for node in source.calls if isinstance(node.func, ast.Name)]
    wrap = [ReplaceExpr("DDP000", source.span(c), "test", "__h_it__", {"it": source.span(c)}) for c in calls]
    assert apply(script, wrap) == script


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
