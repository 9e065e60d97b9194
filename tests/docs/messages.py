"""What the code can say: the texts of its errors and warnings, with `…` for what is filled in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime" / "dp2ddp_runtime"
FILLED_IN = "…"


def text_of(node: ast.AST) -> str | None:
    """The text of a string in the source; None if `node` is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or FILLED_IN for part in node.values)
    return None


def texts(folder: Path) -> Iterator[str]:
    """Every string in a folder's modules. An f-string is one, and so are strings that stand side by side."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = text_of(node)
            if text:
                yield text


def raised(folder: Path) -> Iterator[tuple[str, str]]:
    """The file and text of every error that is raised, and every warning that is given, with a text of its own."""
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        values = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in _speaking(tree):
            said = call.args[0]
            text = text_of(values.get(said.id, said) if isinstance(said, ast.Name) else said)
            if text:
                yield path.name, text


def _speaking(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        is_warning = isinstance(call, ast.Call) and ast.unparse(call.func) in ("warnings.warn", "sys.stderr.write")
        is_shown = isinstance(call, ast.Call) and any(each.arg == "file" for each in call.keywords)
        if isinstance(call, ast.Call) and call.args and (isinstance(node, ast.Raise) or is_warning or is_shown):
            yield call
