"""A code cell as a part of a script: without what IPython adds to Python, and with what the cell shows.

Python's parser says where Python ends: there stands what IPython adds, or a mistake. Each line stays one line, so that
places in the cell stay right. What only concerns the notebook becomes a comment; what means something to the code
behind it is written in Python where that is plain, and is refused where it isn't.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.source.nodes import in_order
from dp2ddp.source.spans import in_brief
from dp2ddp.source.syntax import shared, without_async_arguments

#: Magics that only change what a notebook shows, or measure; a script misses nothing without them.
_SILENT = frozenset(
    "matplotlib load_ext reload_ext unload_ext autoreload aimport config precision pdb debug xmode colors who whos "
    "who_ls history hist pinfo pinfo2 pdoc psource pfile lsmagic watermark timeit automagic page doctest_mode alias "
    "ls ll pwd tb psearch quickref time prun env set_env".split()
)
_PYTHON_CELLS = frozenset({"time", "capture", "prun"})
_SHOWING_CELLS = frozenset({"html", "HTML", "javascript", "js", "latex", "svg", "SVG", "markdown", "timeit"})

_TARGET = r"[A-Za-z_][\w.]*(?:\[[^\]=]*\])?"
_ASSIGNED = rf"(?P<target>{_TARGET}(?:\s*,\s*{_TARGET})*)\s*=\s*"
_PLAIN = "[^{$]+"  # IPython puts Python's values where these two stand
#: What a line is in Python.
_IN_PYTHON = {
    rf"{_ASSIGNED}!!?\s*(?P<line>{_PLAIN})": "{target} = subprocess.getoutput({line!r}).splitlines()",
    rf"{_ASSIGNED}%(?:time|prun)\s+(?P<code>.+)": "{target} = {code}",
    rf"{_ASSIGNED}%pwd": "{target} = os.getcwd()",
    rf"{_ASSIGNED}%env\s+(?P<name>\w+)": "{target} = os.environ[{name!r}]",
    r"%(?:time|prun)\s+(?P<code>[^-].*)": "{code}",
    rf"%cd\s+(['\"]?)(?P<path>(?!-){_PLAIN}?)\1": "os.chdir(os.path.expanduser({path!r}))",
    rf"%(?:set_)?env\s+(?P<name>\w+)\s*[=\s]\s*(?P<value>{_PLAIN})": "os.environ[{name!r}] = {value!r}",
}
_NEEDED = re.compile(rf"{_ASSIGNED}[!%]|%pylab\b|%(?:cd\b|(?:set_)?env\s+\w+\s*[=\s])")
_MAGIC = re.compile(r"%(\w+)(?:\s.*)?")
_CELL_MAGIC = re.compile(r"%%(\w+)(.*)")
_COMMAND = re.compile(r"!|(?:pip3?|conda|mamba)\s+(?:install|uninstall|list|freeze|show)\b")
_QUESTION = re.compile(r"\?{1,2}\s*%{0,2}[A-Za-z_][\w.*]*|%{0,2}[A-Za-z_][\w.*\[\]'\"]*\?{1,2}\s*")
_ASYNC = re.compile(r"\basync(?=\s*=)")
_LONGEST = 50

#: A notebook's progress bars, as those that suit where the script runs.
_BARS = {r"\btqdm\.(?:auto)?notebook\b": "tqdm.auto", r"\btqdm_notebook\b": "tqdm", r"\btnrange\b": "trange"}
#: Calls that are made for what they do, and give back what they were called on, or nothing that anyone reads.
_ABOUT_ITSELF = frozenset(
    "cuda to cpu train eval half float double apply manual_seed load_state_dict seed print display displayhook".split()
)


class Remark(NamedTuple):
    """What a person has to know about a line, from 1, of a cell or of a script."""

    line: int
    what: str
    todo: str


class Cell:
    """A code cell in Python.

    Attributes:
        lines: as many as the cell has.
        tree: their syntax tree.
        modules: what these lines need besides the cell's own imports.
        future: what it imports from `__future__`, which has to stand at the top of a script.
        remarks: what a person has to know.
    """

    def __init__(self, source: str, name: str) -> None:
        """Takes IPython's out.

        Args:
            source: the cell's.
            name: the cell's, for messages.

        Raises:
            BadInput: no Python, or a line whose value is used, and that has no plain counterpart in Python.
        """
        self.lines = re.sub(r"\r\n?", "\n", source).split("\n")
        self.modules: set[str] = set()
        self.future: list[str] = []
        self.remarks: list[Remark] = []
        self._name = name
        first = next((number for number, line in enumerate(self.lines) if line.strip()), 0)
        magic = _CELL_MAGIC.match(self.lines[first])
        if magic is not None and magic[1] not in _PYTHON_CELLS:  # another language, or a file
            self.lines = [_comment(line) for line in self.lines]
            if magic[1] not in _SHOWING_CELLS:
                self._run_by_the_notebook(0, f"the cell `{_short(magic[0])}`")
        elif magic is not None:
            self.lines[first] = _comment(self.lines[first])
        self._take_out()
        text, _ = without_async_arguments("\n".join(self.lines))
        for bar, plain in _BARS.items():
            text = re.sub(bar, plain, text)
        self.lines = text.split("\n")
        self.tree = shared(text, name)

    def _take_out(self) -> None:
        """Line by line where Python's parser stops, until it goes on to the end, or stops at what isn't IPython's."""
        while (number := _no_python(self.lines)) is not None:
            line = self.lines[number]
            new = self._line(number, line)
            if new is None:
                return
            self.lines[number] = new
            while line.endswith("\\") and new.lstrip().startswith(("#", "pass  #")) and number + 1 < len(self.lines):
                number += 1
                line = self.lines[number]
                self.lines[number] = _comment(line)

    def _line(self, number: int, line: str) -> str | None:
        """What the line is in Python, None if it is as it is."""
        indent, code = line[: len(line) - len(line.lstrip())], line.strip()
        for pattern, python in _IN_PYTHON.items():
            if found := re.fullmatch(pattern, code):
                self.modules |= {module for module in ("os", "subprocess") if f"{module}." in python}
                return indent + python.format(**found.groupdict())
        if _NEEDED.match(code):
            what, todo = f"`{_short(code)}` can't be put in a script", "write it in Python, with os or subprocess"
            raise BadInput(self._name, line=number + 1, what=what, todo=todo)
        magic = _MAGIC.fullmatch(code)
        if _COMMAND.match(code) or (magic and magic[1] not in _SILENT):
            self._run_by_the_notebook(number, f"`{_short(code)}`")
        elif not magic and not _QUESTION.fullmatch(code):
            return None
        return _left_out(indent, code)

    def _run_by_the_notebook(self, number: int, line: str) -> None:
        todo = "run it before the script, or write it in Python, if the script needs it"
        self.remarks.append(Remark(number + 1, f"{line} is run by the notebook, not by the script", todo))

    def show(self, pyplot: Collection[str]) -> None:
        """Prints what a notebook shows, the value of the last expression; and says where it shows figures.

        Args:
            pyplot: how the notebook calls it.
        """
        drawing = tuple(f"{each}." for each in pyplot)
        if (value := self._value()) is not None and not ast.unparse(value).startswith(drawing):
            opens, closes = ("((", "))") if isinstance(value, ast.Tuple) else ("(", ")")
            self._insert(value.end_lineno or 0, value.end_col_offset or 0, closes)
            self._insert(value.lineno, value.col_offset, f'__import__("sys").displayhook{opens}')
        self._leave_out()
        while self.lines and not self.lines[-1].strip():
            self.lines.pop()
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        for call in in_order(each for each in calls if ast.unparse(each.func).startswith(drawing))[:1]:
            what = "a notebook shows figures below the cell, a script shows them in a window, or not at all"
            self.remarks.append(Remark(call.lineno, what, "save those that you want to see (`savefig`)"))

    def _insert(self, number: int, column: int, text: str) -> None:
        line = self.lines[number - 1].encode()  # columns are counted in bytes
        self.lines[number - 1] = line[:column].decode() + text + line[column:].decode()

    def _value(self) -> ast.expr | None:
        """The cell's last expression, which is shown as Python's prompt does: without None."""
        last = self.tree.body[-1] if self.tree.body else None
        if not isinstance(last, ast.Expr) or isinstance(
            last.value, (ast.Constant, ast.Await, ast.Yield, ast.YieldFrom)
        ):
            return None
        rest = self.lines[(last.end_lineno or 0) - 1].encode()[last.end_col_offset or 0 :]
        is_told = isinstance(last.value, ast.Call) and ast.unparse(last.value.func).rpartition(".")[2] in _ABOUT_ITSELF
        return None if is_told or _is_ipython(last) or rest.strip().startswith(b";") else last.value

    def _leave_out(self) -> None:
        """Statements that belong to the notebook, or to the top of the script."""
        for statement in ast.walk(self.tree):
            if not isinstance(statement, (ast.Expr, ast.Import, ast.ImportFrom)):
                continue
            first, end, code = statement.lineno - 1, statement.end_lineno, ast.unparse(statement)
            if code.startswith(("from google.colab", "import google.colab")):
                what = "google.colab talks to the notebook's own process; a script can't mount drives or upload files"
                self.remarks.append(Remark(first + 1, what, "do that in the notebook, before the script"))
            if code.startswith("from __future__ "):
                self.future.append(code)
            elif not _is_ipython(statement):
                continue
            if re.match(r"get_ipython\(\)\.(system|getoutput)\(", code):
                self._run_by_the_notebook(first, "a command")
            self.lines[first:end] = _commented(self.lines[first:end])


def _is_ipython(statement: ast.stmt) -> bool:
    """Whether a statement only tells IPython something."""
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("get_ipython().")


def _left_out(indent: str, code: str) -> str:
    # Where it is all of an `if`'s body, a comment alone would be no Python.
    return f"{indent}pass  # {code}" if indent else f"# {code}"


def _comment(line: str) -> str:
    return f"# {line}".rstrip()


def _commented(lines: Sequence[str]) -> list[str]:
    """Lines of a statement that is left out, as comments of the same number."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return [_left_out(indent, lines[0].strip()), *(f"{indent}# {line.strip()}".rstrip() for line in lines[1:])]


def _short(code: str) -> str:
    return in_brief(code.rstrip("\\"), _LONGEST)


def _no_python(lines: Sequence[str]) -> int | None:
    """The first line, from 0, at which Python's parser stops; None where it reads all of them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(_ASYNC.sub("non_blocking", "\n".join(lines)))
    except SyntaxError as error:
        return min(error.lineno or 1, len(lines)) - 1
    except (ValueError, RecursionError, MemoryError):
        pass
    return None
