"""The conditions under which a line is reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.source.nodes import is_main_guard
from dp2ddp.source.program import FUNCTIONS, ParsedProgram


def terms(source: ParsedProgram, node: ast.AST, *, raising: bool = True) -> Iterator[ast.expr]:
    """What must be true for `node` to be reached within its function, from the inside out.

    Args:
        raising: whether that something else ends the script is one of these conditions.
    """
    for above in source.ancestors(node):
        if isinstance(node, ast.stmt):
            yield from _not_left_before(source, node, raising)
        if isinstance(above, (*FUNCTIONS, ast.Module, ast.Lambda)) or is_main_guard(above):
            return
        if isinstance(above, ast.If):
            other = above.orelse if node in above.body else above.body
            # (How many GPUs there are the script may mind: it shall say so itself.)
            if raising or not ends_the_script(other) or "device_count" in ast.unparse(above.test):
                yield above.test if node in above.body else negated(above.test)
        elif isinstance(above, ast.IfExp) and node is not above.test:
            yield above.test if node is above.body else negated(above.test)
        node = above


def _not_left_before(source: ParsedProgram, statement: ast.stmt, raising: bool) -> Iterator[ast.expr]:
    """What must be true for an `if` before the statement not to return."""
    block = source.block(statement)
    for branch in reversed(block[: block.index(statement)]):
        if isinstance(branch, ast.If):
            going_on, leaving, otherwise = _branches(branch, raising)
            if leaving and otherwise:
                yield joined(ast.And(), [negated(test) for test in leaving])
            elif not otherwise and going_on:
                yield joined(ast.Or(), going_on)


def _branches(branch: ast.If, raising: bool) -> tuple[list[ast.expr], list[ast.expr], bool]:
    """The tests of a chain's branches that go on and of those that return, and whether its end goes on."""
    going_on: list[ast.expr] = []
    leaving: list[ast.expr] = []
    while True:
        if raising or not ends_the_script(branch.body):
            (leaving if _leaves(branch.body) else going_on).append(branch.test)
        if len(branch.orelse) == 1 and isinstance(branch.orelse[0], ast.If):
            branch = branch.orelse[0]
            continue
        return going_on, leaving, not _leaves(branch.orelse) or (not raising and ends_the_script(branch.orelse))


#: What may leave a part of it out.
_OPTIONAL = (ast.Try, ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})


def ends_the_script(block: list[ast.stmt]) -> bool:
    """Whether a block ends the script, or hands an error on."""
    last = block[-1] if block else None
    called = last.value if isinstance(last, ast.Expr) else None
    if isinstance(last, ast.Assert):
        return isinstance(last.test, ast.Constant) and not last.test.value
    return isinstance(last, ast.Raise) or (isinstance(called, ast.Call) and ast.unparse(called.func) in _EXITS)


def may_be_passed_by(source: ParsedProgram, node: ast.AST, whole: ast.stmt) -> bool:
    """Whether what follows the statement `whole` may be reached without `node`, which is in it."""
    for above in source.ancestors(node):
        if node is whole:
            return False
        if isinstance(above, ast.If) and node is not above.test:
            other = above.orelse if node in above.body else above.body
            if not _leaves(other) and not ends_the_script(other):
                return True
        elif isinstance(above, _OPTIONAL):
            return True
        node = above
    return False


def _leaves(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], (ast.Return, ast.Raise))


def joined(op: ast.boolop, tests: list[ast.expr]) -> ast.expr:
    """Several tests as one, each once."""
    unique = list({ast.unparse(test): test for test in tests}.values())
    return unique[0] if len(unique) == 1 else ast.BoolOp(op, unique)


_OPPOSITES: dict[type, type] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
}


def negated(test: ast.expr) -> ast.expr:
    """The opposite of a test, as a person writes it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _OPPOSITES:
        return ast.Compare(test.left, [_OPPOSITES[type(test.ops[0])]()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def opposite(source: ParsedProgram, test: ast.expr) -> str:
    """The source of a test's opposite, as the script writes it where it does."""
    found = negated(test)
    if source.parent(found) is not None:
        return " ".join(source.segment(found).split())
    return ast.unparse(ast.fix_missing_locations(found))


def is_true_constant(node: ast.expr) -> bool:
    """Whether a test is true whatever happens: `gpus` where `build(gpus=[0, 1])` is called."""
    is_list = isinstance(node, (ast.List, ast.Tuple)) and bool(node.elts)
    return is_list or (isinstance(node, ast.Constant) and bool(node.value))


def with_and(test: ast.expr | None) -> ast.expr | None:
    """`a if b else False` as `b and a`."""
    if not isinstance(test, ast.IfExp) or not isinstance(test.orelse, ast.Constant) or test.orelse.value:
        return test
    return ast.BoolOp(ast.And(), [test.test, test.body])
