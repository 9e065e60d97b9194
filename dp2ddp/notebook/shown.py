"""What a cell shows, in a script: figures are saved, tables are printed, progress bars are the terminal's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.notebook.magics import commented
from dp2ddp.notebook.notebook import Remark

_PYPLOT = "matplotlib.pyplot"
#: Functions of pyplot that draw nothing.
_NOT_DRAWN = frozenset(
    "show close savefig style rc rcParams rc_context switch_backend ion ioff get_backend get_cmap colormaps cm ".split()
)
_OF_NOTEBOOKS = re.compile(r"\btqdm\.(?:auto)?notebook\b")
_OLD_BAR = re.compile(r"\btqdm_notebook\b(\s+as\b)?")
_OLD_RANGE = re.compile(r"\btnrange\b(\s+as\b)?")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: Calls that are made for what they do, and give back what they were called on, or nothing that anyone reads.
_ABOUT_ITSELF = frozenset(
    "cuda to cpu train eval half float double apply manual_seed load_state_dict seed print displayhook".split()
)
_AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)
_REPEATED = (ast.For, ast.While, *_FUNCTIONS)


@dataclass
class Names:
    """What names mean in a notebook, all of its cells together.

    Attributes:
        stem: what figures are named after.
        pyplot: how it calls pyplot.
        own: names that it binds or imports.
        figures: how many figures have a name.
    """

    stem: str
    pyplot: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    figures: int = 0

    def enter(self, tree: ast.Module) -> None:
        """Takes in what a cell binds."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.pyplot |= {alias.asname or alias.name for alias in node.names if alias.name == _PYPLOT}
            elif isinstance(node, ast.ImportFrom):
                self.own |= {alias.asname or alias.name for alias in node.names}
                if node.module == "matplotlib":
                    self.pyplot |= {each.asname or each.name for each in node.names if each.name == "pyplot"}
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.own.add(node.id)

    def next_figure(self) -> str:
        """The file for the next figure."""
        self.figures += 1
        return f"{self.stem}_figure_{self.figures}.png"


class _Edit(NamedTuple):
    """New text in place of a node's; `text` keeps the number of lines."""

    node: ast.expr
    text: str


@dataclass
class Shown:
    """A cell whose lines are rewritten in place.

    Attributes:
        lines: the cell's lines, and one more if a figure is shown at its end.
        remarks: what a person has to know.
        future: what it imports from `__future__`, which has to stand at the top of a script.
    """

    lines: list[str]
    remarks: list[Remark] = field(default_factory=list)
    future: list[str] = field(default_factory=list)


def rewrite(lines: Sequence[str], tree: ast.Module, name: str, names: Names) -> Shown:
    """A cell as a part of a script.

    Args:
        lines: the cell's, in Python.
        tree: their syntax tree.
        name: the cell's, for messages.
        names: what names mean in the notebook.

    Raises:
        BadInput: an `await` outside of functions.
    """
    for node in _outside_functions(tree):
        if isinstance(node, _AWAITS):
            raise BadInput(
                name,
                line=node.lineno,
                column=node.col_offset + 1,
                what="`await` outside of a function, which only notebooks have",
                todo="put it into an `async def main()`, and call asyncio.run(main())",
            )
    shown = Shown(list(lines))
    edits = list(_edits(tree, shown, names))
    for edit in sorted(edits, key=lambda each: (each.node.lineno, each.node.col_offset), reverse=True):
        _replace(shown.lines, edit)
    _rewrite_statements(tree, shown)
    _show_at_end(tree, shown, names)
    return shown


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _FUNCTIONS):
            yield child
            yield from _outside_functions(child)


def _edits(tree: ast.Module, shown: Shown, names: Names) -> Iterator[_Edit]:
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    repeated = {id(n) for node in ast.walk(tree) if isinstance(node, _REPEATED) for n in ast.walk(node)}
    inside = {id(n) for statement in ast.walk(tree) if _is_ipython(statement) for n in ast.walk(statement)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in inside]
    for node in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
        called = ast.unparse(node.func)
        if called == "display" and called not in names.own:
            yield _Edit(node.func, "print")
        elif called == "get_ipython" and called not in names.own:
            yield _Edit(node, "None")
        elif called.endswith(".show") and called[: -len(".show")] in names.pyplot and id(node) in statements:
            yield _Edit(node, _saved(names, called[: -len(".show")]))
            if id(node) in repeated:
                figure = f"{names.stem}_figure_{names.figures}.png"
                what = f"shown more than once: each figure takes the place of the one before in {figure}"
                shown.remarks.append(Remark(node.lineno, what, "put what changes into the name, to keep all"))


def _saved(names: Names, pyplot: str) -> str:
    return f'{pyplot}.savefig("{names.next_figure()}"); {pyplot}.close("all")'


def _replace(lines: list[str], edit: _Edit) -> None:
    """Puts an edit's text where its node stands; lines that the node leaves empty stay, as empty ones."""
    node = edit.node
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    # Columns are counted in bytes.
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last].encode()[node.end_col_offset :].decode()
    lines[first : last + 1] = [before + edit.text + after, *[""] * (last - first)]


def _is_ipython(statement: ast.AST) -> bool:
    """Whether a statement only tells IPython something."""
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("get_ipython().")


def _rewrite_statements(tree: ast.Module, shown: Shown) -> None:
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt):
            continue
        first, end = statement.lineno - 1, statement.end_lineno or statement.lineno
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            shown.future.append(ast.unparse(statement))
            shown.lines[first:end] = commented(shown.lines[first:end])
        elif _is_ipython(statement):
            if ".system(" in shown.lines[first] or ".getoutput(" in shown.lines[first]:
                what = "a command that is run by the notebook, not by the script"
                shown.remarks.append(Remark(first + 1, what, "run it before the script, if the script needs it"))
            shown.lines[first:end] = commented(shown.lines[first:end])
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for number in range(first, end):
                shown.lines[number] = _bars_of_terminals(shown.lines[number])
            if ast.unparse(statement).startswith(("from google.colab", "import google.colab")):
                what = "google.colab talks to the notebook's own process; a script can't mount drives or upload files"
                shown.remarks.append(Remark(first + 1, what, "do that in the notebook, before the script"))
        elif "tqdm.notebook." in shown.lines[first]:
            shown.lines[first] = _OF_NOTEBOOKS.sub("tqdm.auto", shown.lines[first])


def _bars_of_terminals(line: str) -> str:
    """tqdm's bars for notebooks, as those that suit where the script runs."""
    line = _OF_NOTEBOOKS.sub("tqdm.auto", line)
    line = _OLD_BAR.sub(lambda found: "tqdm as" if found[1] else "tqdm as tqdm_notebook", line)
    return _OLD_RANGE.sub(lambda found: "trange as" if found[1] else "trange as tnrange", line)


def _show_at_end(tree: ast.Module, shown: Shown, names: Names) -> None:
    """A cell's figure is shown at its end, asked for or not, and the next cell begins a new one."""
    drawn = last = ""
    calls = [node for node in _outside_functions(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        pyplot, _, function = ast.unparse(call.func).partition(".")
        if pyplot not in names.pyplot:
            pyplot, _, function = ast.unparse(call.func).rpartition(".")
        if pyplot not in names.pyplot:
            continue
        if function in ("show", "close"):
            drawn = ""
        elif function.split(".")[0] not in _NOT_DRAWN:
            drawn = pyplot
        last = function
    if drawn:
        while not shown.lines[-1].strip():
            shown.lines.pop()
        shown.lines.append(f'{drawn}.close("all")' if last == "savefig" else _saved(names, drawn))
    elif not last:
        _show_value(tree, shown)


def _show_value(tree: ast.Module, shown: Shown) -> None:
    """The value of a cell's last expression is shown as Python's prompt does, which leaves out None."""
    statement = tree.body[-1] if tree.body else None
    if not isinstance(statement, ast.Expr) or isinstance(statement.value, (ast.Constant, ast.Yield, ast.YieldFrom)):
        return
    if _is_ipython(statement):
        return
    value = statement.value
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _ABOUT_ITSELF:
        return
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    rest = shown.lines[last].encode()[statement.end_col_offset or 0 :].decode()
    if first == last and ast.unparse(statement) in shown.lines[first] and not rest.strip().startswith(";"):
        text = shown.lines[first].encode()[statement.col_offset : statement.end_col_offset].decode()
        _replace(shown.lines, _Edit(value, f'__import__("sys").displayhook({text})'))
