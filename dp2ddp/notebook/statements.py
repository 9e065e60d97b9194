"""Which lines begin a statement, told without parsing: a cell with magics in it is no Python yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(r"""\\.|'''|\"\"\"|['"#()\[\]{}]""", re.DOTALL)


def starts(lines: Sequence[str], first: int = 0) -> Iterator[tuple[int, bool]]:
    """The number of each line, and whether a statement can begin on it: no string, bracket or backslash is open.

    Args:
        lines: may be changed while this is iterated; what a line says when the next one is asked for counts.
        first: the first line to look at.
    """
    quote, depth = "", 0
    goes_on = False
    for number in range(first, len(lines)):
        yield number, not (quote or depth or goes_on)
        line = lines[number]
        goes_on = line.endswith("\\") and not line.lstrip().startswith("#")
        quote, depth = _after(line, quote, depth)


def _after(line: str, quote: str, depth: int) -> tuple[str, int]:
    """The quotes and the number of brackets that are open at the end of a line."""
    for token in _TOKEN.findall(line):
        if quote:
            quote = "" if token == quote else quote
            if quote and len(quote) == 1 and len(token) == 3 and token[0] == quote:
                quote = ""  # the end of one string, and two quotes of another
        elif token == "#":
            break
        elif token[0] in "'\"":
            quote = token
        elif token in "([{":
            depth += 1
        elif token in ")]}":
            depth = max(0, depth - 1)
    # A string in single quotes ends with its line, unless a backslash takes it on.
    return (quote, depth) if len(quote) == 3 or line.endswith("\\") else ("", depth)
