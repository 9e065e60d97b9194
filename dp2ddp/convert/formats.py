"""Findings in the forms that people and machines read; docs/ci.md tells what for."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from click import style

from dp2ddp.convert.findings import CHANGE, REFUSED, Found
from dp2ddp.errors import printable

#: The version of the JSON (docs/findings.schema.json): it changes where a reader would have to.
JSON_VERSION = 1
_LEVELS = {"change": "notice", "note": "warning", "refused": "error"}
_WORDS = {"change": "to change", "note": "for a person", "refused": "refused"}
#: Where GitHub has the repository; it wants names from there.
_TOP = "GITHUB_WORKSPACE"


def as_concise(found: Sequence[Found]) -> str:
    """A line for each, as ruff's concise form has it."""
    return "\n".join(f"{style(f'{_place(each)}:', bold=True)} {_message(each)}" for each in found)


def as_full(found: Sequence[Found]) -> str:
    """Each with its source and what becomes of it, as ruff's full form has it."""
    return "\n".join("\n".join([*_full(each), ""]) for each in found)


def _place(each: Found) -> str:
    return f"{printable(each.file)}:{each.place}:{each.column}"


def _message(each: Found) -> str:
    rule = f"{style(each.rule, fg='cyan')} " if each.rule else ""
    kind = "" if each.kind == CHANGE else style(f"{each.kind}: ", fg="red" if each.kind == REFUSED else "yellow")
    return f"{rule}{kind}{printable(each.message)}"


def _full(each: Found) -> Iterator[str]:
    width = max((len(str(number)) for number, _ in each.source), default=1)
    margin = f"{'':{width}} {style('|', fg='blue')}"
    yield _message(each)
    yield f"{'':{width}}{style('-->', fg='blue')} {_place(each)}"
    if each.source:
        yield margin
    for number, line in each.source:
        yield f"{number:{width}} {style('|', fg='blue')} {_shown(line)}".rstrip()
        if number == each.line:
            start = len(_shown(line[: each.column - 1]))
            carets = "^" * max(len(_shown(line[: each.end_column - 1])) - start, 1)
            yield f"{margin} {'':{start}}{style(carets, fg='red')}"
    if each.becomes:
        yield margin
        yield f"{style('help:', fg='cyan')} `dp2ddp convert` makes of it"
        yield from (f"{'':{width}} {style('+', fg='green')} {_shown(line)}".rstrip() for line in each.becomes)


def _shown(line: str) -> str:
    return printable(line.expandtabs(4))


def in_sum(found: Sequence[Found]) -> str:
    """What there is, in one line."""
    if not found:
        return "nothing to convert"
    kinds = Counter(each.kind for each in found)
    files = len({each.file for each in found})
    named = ", ".join(f"{kinds[kind]} {word}" for kind, word in _WORDS.items() if kinds[kind])
    return f"{named} in {files} file{'s' if files > 1 else ''}; `dp2ddp convert` makes the changes"


def as_json(found: Sequence[Found], more: Mapping[str, Any] | None = None) -> str:
    """As docs/findings.schema.json has it: each finding with `Found`'s fields, and what `convert` says besides."""
    findings = [each.as_data() for each in found]
    return json.dumps({"version": JSON_VERSION, "findings": findings, **(more or {})}, indent=2)


def as_github(found: Sequence[Found]) -> str:
    """Annotations of a pull request. One in a cell stands at the file's first line, as ruff has it.

    See https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
    """
    return "\n".join(map(_annotation, found))


def _annotation(each: Found) -> str:
    if each.cell is not None:
        each = each._replace(line=1, column=1, message=f"cell {each.cell}, line {each.line}: {each.message}")
    given = {"file": _from_the_top(each.file), "line": each.line, "col": each.column}
    given |= {"endColumn": each.end_column} if each.end_column > each.column else {}
    given["title"] = f"dp2ddp {each.rule}".strip()
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in given.items())
    text = "\n".join([each.message, *each.becomes])
    return f"::{_LEVELS[each.kind]} {properties}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _from_the_top(file: str) -> str:
    """A file's name as seen from the top of the repository, with `/` between folders."""
    top, place = os.path.abspath(os.environ.get(_TOP) or "/"), os.path.abspath(file)
    inside = _TOP in os.environ and place.startswith(os.path.join(top, ""))
    return (os.path.relpath(place, top) if inside else file).replace(os.sep, "/")


FORMATS: dict[str, Callable[[Sequence[Found]], str]] = {
    "full": as_full,
    "concise": as_concise,
    "json": as_json,
    "github": as_github,
    "text": as_full,  # its name before there were two forms for people
}
