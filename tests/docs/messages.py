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
    """The file and text of every error that is made, and every warning that is given, with a text of its own."""
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        values = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for said in _said(tree):
            text = text_of(values.get(said.id, said) if isinstance(said, ast.Name) else said)
            if text and " " in text.strip():  # a word alone is a signal between functions
                yield path.name, text


def _said(tree: ast.Module) -> Iterator[ast.expr]:
    """What is told, in calls that make an error, warn, or write to standard error."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = ast.unparse(call.func).rpartition(".")[2].lstrip("_")
        if name.endswith("Error") or name in _SPEAKING:
            said = call.args[0]
            # A constant that is filled in: `_UNLIKE.format(...)`.
            yield said.func.value if isinstance(said, ast.Call) and isinstance(said.func, ast.Attribute) else said
        elif name == "tell" and len(call.args) == 2:  # once for each key
            yield call.args[1]
        elif ast.unparse(call.func) == "sys.stderr.write":
            yield call.args[0]


_SPEAKING = ("SystemExit", "Divergence", "PeerError", "warn", "say", "end", "refusal")
