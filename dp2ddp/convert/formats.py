"""Findings in the forms that people and machines read; docs/ci.md tells what for."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from click import style

from dp2ddp import __version__
from dp2ddp.convert.findings import CHANGE, REFUSED, Found
from dp2ddp.errors import printable
from dp2ddp.rules import all_rules

#: The version of the JSON (docs/findings.schema.json): it changes where a reader would have to.
JSON_VERSION = 1
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"change": "note", "note": "warning", "refused": "error"}
_WORDS = {"change": "to change", "note": "for a person", "refused": "refused"}


def _in_file(each: Found) -> Found:
    """A finding for readers who know files' lines only: one in a cell stands at its first line, as ruff has it."""
    if each.cell is None:
        return each
    return each._replace(line=1, column=1, message=f"cell {each.cell}, line {each.line}: {each.message}")


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
    """Annotations of a pull request.

    See https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
    """
    return "\n".join(map(_annotation, map(_in_file, found)))


def _annotation(each: Found) -> str:
    level = {"note": "notice"}.get(_LEVELS[each.kind], _LEVELS[each.kind])
    title = f"dp2ddp {each.rule}".strip()
    given = {"file": _from_the_top(each.file), "line": each.line, "col": each.column}
    given |= {"endColumn": each.end_column} if each.end_column > each.column else {}
    given["title"] = title
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in given.items())
    message = "\n".join([each.message, *each.becomes])  # and below it the new lines
    return f"::{level} {properties}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _from_the_top(file: str) -> str:
    """A file's name as seen from the top of the repository, where GitHub says that; with `/` between folders."""
    top = os.environ.get("GITHUB_WORKSPACE")
    is_inside = top is not None and os.path.abspath(file).startswith(os.path.join(os.path.abspath(top), ""))
    return (os.path.relpath(file, top) if is_inside else file).replace(os.sep, "/")


def as_sarif(found: Sequence[Found]) -> str:
    """SARIF 2.1.0; see https://docs.oasis-open.org/sarif/sarif/v2.1.0/."""
    found = list(map(_in_file, found))
    named = {each.rule for each in found}
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": f"{rule.why} `dp2ddp rules {rule.id}` shows examples."},
        }
        for rule in all_rules()
        if rule.id in named
    ]
    tool = {"driver": {"name": "dp2ddp", "version": __version__, "rules": rules}}
    results = [*map(_result, found)]
    run = {"tool": tool, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(each: Found) -> dict[str, Any]:
    from urllib.parse import quote

    name = os.fsencode(_from_the_top(each.file))
    file = {"uri": f"file://{quote(name)}" if os.path.isabs(name) else quote(name)}
    region = {"startLine": each.line, "startColumn": each.column}
    region |= {"endColumn": each.end_column} if each.end_column > each.column else {}
    return {
        **({"ruleId": each.rule} if each.rule else {}),
        "level": _LEVELS[each.kind],
        "message": {"text": each.message},
        "locations": [{"physicalLocation": {"artifactLocation": file, "region": region}}],
    }


FORMATS: dict[str, Callable[[Sequence[Found]], str]] = {
    "full": as_full,
    "concise": as_concise,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
    "text": as_full,  # its name before there were two forms for people
}
