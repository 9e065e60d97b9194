"""By which names callers know what a function uses."""

from __future__ import annotations

import ast
import re

from dp2ddp.analysis.control.loops import is_path
from dp2ddp.source.program import FunctionNode, ParsedProgram


def written_by_caller(source: ParsedProgram, call: ast.Call, function: FunctionNode, text: str) -> str | None:
    """How the caller writes what `function` knows as `text`, None where it has no name there."""
    root = _root_of(text)
    index = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)} - {root}
    if index & source.local_names(function):
        return None  # the caller has no such index
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    is_method = isinstance(source.parent(function), ast.ClassDef)
    if is_method and parameters and root == parameters[0]:
        if isinstance(call.func, ast.Attribute) and is_path(call.func.value):
            return source.segment(call.func.value) + text[len(root) :]
        return None
    if root not in parameters:
        local = any(
            isinstance(n, ast.Name) and n.id == root and isinstance(n.ctx, ast.Store) for n in ast.walk(function)
        )
        here = source.module(call) is source.module(function)
        return text if here and not local else None
    position = parameters.index(root) - int(is_method)
    given = next((k.value for k in call.keywords if k.arg == root), None)
    if given is None and position < len(call.args):
        given = call.args[position]
    return source.segment(given) + text[len(root) :] if given is not None and is_path(given) else None


def _root_of(path: str) -> str:
    """The name that a path starts with."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]
