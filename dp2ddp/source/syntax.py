"""Parsing a script with Python's own parser, with errors that name what is wrong, Python 2 above all."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache

from dp2ddp.errors import BadInput
from dp2ddp.source.spans import Position

#: What Python 3 can't read, by the line that shows it: what it is, and what to do. The first three are looked for in
#: the whole file, once it is known not to be Python 3; the others only in the line with the error, where a chance match
#: is unlikely.
_TO_3 = "bring it to Python 3 first, as 2to3 does"
_SIGNS = (
    ("a merge conflict marker", "resolve the conflict first", re.compile(r"^(?:<{7}|>{7})(?:\s|$)")),
    ("Python 2 (the print statement)", _TO_3, re.compile(r"^\s*print\s+(?:>>|[\w\"'`%-])")),
    ("Python 2 (`except X, e`)", _TO_3, re.compile(r"^\s*except\s+[^:#]*\S\s*,\s*\w+\s*:")),
    ("Python 2 (`raise X, y`)", _TO_3, re.compile(r"^\s*raise\s+[\w.]+\s*,")),
    ("Python 2 (the exec statement)", _TO_3, re.compile(r"^\s*exec\s+[\w\"']")),
    ("Python 2 (backquotes)", _TO_3, re.compile(r"`[^`]+`")),
    ("Python 2 (`<>`)", _TO_3, re.compile(r"<>")),
    ("Python 2 (an octal number such as 0777)", _TO_3, re.compile(r"(?<![\w.])0[0-7]+\b(?!\.)")),
    ("Python 2 (a long number such as 10L)", _TO_3, re.compile(r"\b\d+[lL]\b")),
    ("Python 2 (a string such as ur'')", _TO_3, re.compile(r"\b[uU][rR][\"']")),
    ("Python 2 (unpacking in parameters)", _TO_3, re.compile(r"^\s*def\s+\w+\s*\([^)]*\(\s*\w+\s*,")),
)
_WHOLE_FILE = 3
_NEW_NAME = "non_blocking"
_LONGER = len(_NEW_NAME) - len("async")
_ASYNC_ARGUMENT = re.compile(r"[(,]\s*async\s*=")


def without_async_arguments(text: str) -> tuple[str, list[Position]]:
    """`text` with `async=` in calls renamed to `non_blocking=`, as PyTorch calls it since 0.4; and where that was.

    Returns the text, and where in it the new names stand.

    Since Python 3.7 `async` is a keyword, so that nothing else can stand before a `=`; strings and comments stay.
    """
    if _ASYNC_ARGUMENT.search(text) is None:
        return text, []
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        return text, []  # the parser says what is wrong
    pairs = zip(tokens, tokens[1:])
    places = [one.start for one, following in pairs if one.string == "async" and following.string == "="]
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    renamed: list[Position] = []
    for line, old in places:
        column = old + _LONGER * sum(each.line == line for each in renamed)
        before = lines[line - 1]
        lines[line - 1] = f"{before[:column]}{_NEW_NAME}{before[column + len('async') :]}"
        renamed.append(Position(line, column))
    return "".join(lines), renamed


def as_written(place: Position, renamed: Sequence[Position]) -> Position:
    """Where `place` was before `without_async_arguments`, which says what was renamed."""
    before = sum(each.line == place.line and each.column < place.column for each in renamed)
    return Position(place.line, place.column - before * _LONGER)


def shared(text: str, filename: str) -> ast.Module:
    """As `parse`, of a text that may say `async=` in calls; parsed once for all who only look at it."""
    return parse(without_async_arguments(text)[0], filename, _known)


_known = lru_cache(maxsize=4096)(ast.parse)


def parse(text: str, filename: str, reader: Callable[[str], ast.Module] = ast.parse) -> ast.Module:
    """The syntax tree of `text`, which has no byte order mark.

    Raises:
        BadInput: no Python that this interpreter reads; with line and column (from 1).
    """
    try:
        with warnings.catch_warnings():
            # Invalid escapes and the like are the script's own affair, and Python tells its user.
            warnings.simplefilter("ignore")
            return reader(text)
    except SyntaxError as error:
        raise _bad_syntax(error, text, filename) from None
    except (RecursionError, MemoryError):
        raise BadInput(filename, what="nested too deeply for Python's parser") from None
    except ValueError as error:
        raise BadInput(filename, what=f"no Python source ({error})") from None


def check_compiles(text: str, filename: str) -> None:
    """Checks what Python's compiler checks behind its parser: `return` outside of a function, late `__future__`...

    Raises:
        BadInput: it doesn't compile; with line and column (from 1).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _syntax_error(error, filename) from None


def _bad_syntax(error: SyntaxError, text: str, filename: str) -> BadInput:
    lines = re.split(r"\r\n|\r|\n", text)
    for number in (error.lineno or 0, *range(1, len(lines) + 1)):
        signs = _SIGNS if number == error.lineno else _SIGNS[:_WHOLE_FILE]
        for what, todo, pattern in signs if 1 <= number <= len(lines) else ():
            if pattern.search(lines[number - 1]):
                return BadInput(filename, line=number, what=what, todo=todo)
    return _syntax_error(error, filename)


def _syntax_error(error: SyntaxError, filename: str) -> BadInput:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return BadInput(
        filename,
        line=error.lineno,
        column=max(error.offset, 1) if error.offset is not None else None,
        what=f"syntax error: {error.msg}",
        todo=f"dp2ddp reads what the Python that runs it reads, here {version}",
    )
