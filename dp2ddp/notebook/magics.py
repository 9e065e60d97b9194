"""A cell's source without what IPython adds to Python: magics, shell lines, questions.

Python's parser says where Python ends: there stands what IPython adds, or a mistake. Each line stays one line, so that
places in the cell stay right. What only concerns the notebook becomes a comment; what
means something to the code behind it is written in Python where that is plain, and is refused where it isn't.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from dp2ddp.errors import BadInput
from dp2ddp.notebook.notebook import Remark

#: Magics that only change what a notebook shows, or measure; a script misses nothing without them.
_SILENT = frozenset(
    "matplotlib load_ext reload_ext unload_ext autoreload aimport config precision pdb debug xmode colors who whos "
    "who_ls history hist pinfo pinfo2 pdoc psource pfile lsmagic watermark timeit automagic page doctest_mode alias "
    "ls ll pwd tb psearch quickref".split()
)
_RUNS = frozenset({"time", "prun"})  # the statement behind it is run
_SETTINGS = frozenset({"cd", "env", "set_env"})
_SHELL = frozenset({"pip", "conda", "mamba", "uv", "sx", "system", "mkdir", "rm", "cp", "mv", "cat"})
_PYTHON_CELLS = frozenset({"time", "capture", "prun"})
_SHOWING_CELLS = frozenset({"html", "HTML", "javascript", "js", "latex", "svg", "SVG", "markdown", "timeit"})

_CELL_MAGIC = re.compile(r"%%(\w+)(.*)")
_MAGIC = re.compile(r"%(\w+)(?:\s+(.*))?$")
_INSTALL = re.compile(r"(?:pip3?|conda|mamba)\s+(?:install|uninstall|list|freeze|show)\b")
_QUESTION = re.compile(r"\?{1,2}\s*%{0,2}[A-Za-z_][\w.*]*|%{0,2}[A-Za-z_][\w.*\[\]'\"]*\?{1,2}\s*$")
_TARGET = r"[A-Za-z_][\w.]*(?:\[[^\]=]*\])?"
_ASSIGNED = re.compile(rf"({_TARGET}(?:\s*,\s*{_TARGET})*)\s*=\s*([!%])(.*)")
_VARIABLE = re.compile(r"[{$]")  # IPython puts Python's values there
_ASYNC = re.compile(r"\basync(?=\s*=)")
_LONGEST = 50


@dataclass
class Plain:
    """A cell in Python.

    Attributes:
        lines: as many as the cell has.
        imports: modules that these lines need besides the cell's own.
        remarks: what a person has to know.
        kept: the cell's lines that a notebook goes on running itself.
    """

    lines: list[str]
    imports: set[str] = field(default_factory=set)
    remarks: list[Remark] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def plain(source: str, name: str, *, as_script: bool) -> Plain:
    """A cell's source in Python.

    Args:
        source: the cell's, with newlines as "\\n".
        name: the cell's, for messages.
        as_script: the script runs without its notebook, so what `%cd` and `%env` set is set in the script.

    Raises:
        BadInput: a line whose value is used, and that has no plain counterpart in Python.
    """
    cell = Plain(source.split("\n"))
    first = next((number for number, line in enumerate(cell.lines) if line.strip()), 0)
    cell_magic = _CELL_MAGIC.match(cell.lines[first])
    if cell_magic is not None:
        if cell_magic[1] not in _PYTHON_CELLS:
            return _other_cell(cell, cell_magic)
        cell.lines[first] = f"# {cell.lines[first]}"
    _Lines(cell, name, as_script=as_script).rewrite()
    return cell


def _other_cell(cell: Plain, magic: re.Match[str]) -> Plain:
    """A cell in another language, or one that writes a file."""
    cell.kept = list(cell.lines)
    cell.lines = [_comment(line) for line in cell.lines]
    if magic[1] not in _SHOWING_CELLS:
        what = f"the cell `{_short(magic[0])}` is run by the notebook, not by the script"
        cell.remarks.append(Remark(1, what, "run it before the script, if the script needs it", kept=True))
    return cell


class _Lines:
    """Rewrites the lines of one cell."""

    def __init__(self, cell: Plain, name: str, *, as_script: bool) -> None:
        self.cell = cell
        self.name = name
        self.as_script = as_script

    def rewrite(self) -> None:
        """Line by line where Python's parser stops, until it goes on to the end, or stops at what isn't IPython's."""
        lines, kept = self.cell.lines, self.cell.kept
        while (number := _no_python(lines)) is not None:
            line, before = lines[number], len(kept)
            new = self._line(number, line)
            if new is None:
                return
            lines[number] = new
            keeps = len(kept) > before
            while line.endswith("\\") and new.lstrip().startswith(("#", "pass  #")) and number + 1 < len(lines):
                number += 1
                line = lines[number]
                kept += [line] if keeps else []
                lines[number] = _comment(line)

    def _line(self, number: int, line: str) -> str | None:
        """What the line is in Python, None if it is as it is."""
        indent, code = line[: len(line) - len(line.lstrip())], line.strip()
        if code.startswith("!") or _INSTALL.match(code):
            return self._shell(number, indent, code)
        magic = _MAGIC.match(code)
        if magic is not None:
            return self._magic(number, indent, magic)
        if _QUESTION.fullmatch(code):
            return _left_out(indent, code)
        assigned = _ASSIGNED.match(code)
        if assigned is not None:
            return indent + self._assigned(number, *assigned.groups())
        return None

    def _shell(self, number: int, indent: str, code: str) -> str:
        what = f"`{_short(code)}` is run by the notebook, not by the script"
        # What stands under a condition can't be run without it.
        self._remark(number, what, "run it before the script, if the script needs it", kept=not indent)
        self.cell.kept += [] if indent else [code]
        return _left_out(indent, code)

    def _magic(self, number: int, indent: str, magic: re.Match[str]) -> str:
        name, rest, code = magic[1], (magic[2] or "").strip(), magic[0]
        if name in _SHELL:
            return self._shell(number, indent, code)
        if name in _RUNS and rest and not rest.startswith("-"):
            return indent + rest
        if name in _SILENT or name in _RUNS:
            return _left_out(indent, code)
        if name in _SETTINGS:
            return self._setting(number, indent, name, rest, code)
        if name == "pylab":
            raise self._refused(number, code, "import numpy and matplotlib by name")
        what = f"`{_short(code)}` is the notebook's own, and left out of the script"
        self._remark(number, what, "write what it does in Python, if the script needs it")
        return _left_out(indent, code)

    def _setting(self, number: int, indent: str, name: str, rest: str, code: str) -> str:
        """A folder or a variable: inherited from the notebook by what it starts, else set in the script."""
        variable = re.fullmatch(r"(\w+)\s*(?:=|\s)\s*(.+)", rest) if name != "cd" else None
        if name != "cd" and variable is None:
            return _left_out(indent, code)
        if not self.as_script:
            self.cell.kept.append(code)
            return _left_out(indent, code)
        if not rest or rest == "-" or _VARIABLE.search(rest):
            raise self._refused(number, code, "set it with os.chdir or os.environ")
        self.cell.imports.add("os")
        if variable is not None:
            return f"{indent}os.environ[{_quoted(variable[1])}] = {_quoted(variable[2])}"
        path = _quoted(rest.strip("'\""))
        return f"{indent}os.chdir(os.path.expanduser({path}))" if "~" in rest else f"{indent}os.chdir({path})"

    def _assigned(self, number: int, target: str, kind: str, code: str) -> str:
        """The value of a command or of a magic."""
        code = code.strip()
        name, _, rest = code.partition(" ")
        if kind == "!" and not _VARIABLE.search(code):
            self.cell.imports.add("subprocess")
            return f"{target} = subprocess.getoutput({_quoted(code.lstrip('!'))}).splitlines()"
        if kind == "%" and name in _RUNS and rest:
            return f"{target} = {rest}"
        if kind == "%" and name == "pwd":
            self.cell.imports.add("os")
            return f"{target} = os.getcwd()"
        if kind == "%" and name == "env" and re.fullmatch(r"\w+", rest):
            self.cell.imports.add("os")
            return f"{target} = os.environ[{_quoted(rest)}]"
        raise self._refused(number, f"{target} = {kind}{code}", "write it with subprocess, os or glob")

    def _remark(self, number: int, what: str, todo: str, *, kept: bool = False) -> None:
        self.cell.remarks.append(Remark(number + 1, what, todo, kept))

    def _refused(self, number: int, code: str, todo: str) -> BadInput:
        return BadInput(self.name, line=number + 1, what=f"`{_short(code)}` can't be put in a script", todo=todo)


def _left_out(indent: str, code: str) -> str:
    # Where it is all of an `if`'s body, a comment alone would be no Python.
    return f"{indent}pass  # {code}" if indent else f"# {code}"


def _comment(line: str) -> str:
    return f"# {line}".rstrip()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _short(code: str) -> str:
    text = " ".join(code.rstrip("\\").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def commented(lines: Sequence[str]) -> list[str]:
    """Lines of a statement that is left out, as comments of the same number."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return [_left_out(indent, lines[0].strip()), *(f"{indent}# {line.strip()}".rstrip() for line in lines[1:])]


def _no_python(lines: Sequence[str]) -> int | None:
    """The first line, from 0, at which Python's parser stops; None where it reads all of them."""
    text = _ASYNC.sub("non_blocking", "\n".join(lines))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return min(error.lineno or 1, len(lines)) - 1
    except (ValueError, RecursionError, MemoryError):
        pass
    return None
