"""What `dp2ddp check` finds, in the forms that people and machines read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from click import style

from dp2ddp import __version__
from dp2ddp.convert.check import CHANGE, REFUSED, Found
from dp2ddp.rules import all_rules

#: The version of the JSON: it changes where a reader would have to.
JSON_VERSION = 1
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"change": "note", "note": "warning", "refused": "error"}
_WORDS = {"change": "to change", "note": "for a person", "refused": "refused"}
_SEVERITIES = {"change": "minor", "note": "major", "refused": "critical"}


def _in_file(each: Found) -> Found:
    """A finding for readers who know files' lines only: one in a cell stands at its first line, as ruff has it."""
    if each.cell is None:
        return each
    return each._replace(line=1, column=1, message=f"cell {each.cell}, line {each.line}: {each.message}")


def as_text(found: Sequence[Found]) -> str:
    """A line for each, as compilers and ruff have it, and a sum."""
    return "\n".join([*map(_line, found), _sum(found)])


def _line(each: Found) -> str:
    cell = "" if each.cell is None else f"cell {each.cell}:"
    place = style(f"{each.file}:{cell}{each.line}:{each.column}:", bold=True)
    rule = f"{style(each.rule, fg='cyan')} " if each.rule else ""
    kind = "" if each.kind == CHANGE else style(f"{each.kind}: ", fg="red" if each.kind == REFUSED else "yellow")
    return f"{place} {rule}{kind}{each.message}"


def _sum(found: Sequence[Found]) -> str:
    if not found:
        return "nothing to convert"
    kinds = Counter(each.kind for each in found)
    files = len({each.file for each in found})
    named = ", ".join(f"{kinds[kind]} {word}" for kind, word in _WORDS.items() if kinds[kind])
    return f"{named} in {files} file{'s' if files > 1 else ''}; `dp2ddp convert` makes the changes"


def as_json(found: Sequence[Found]) -> str:
    """`{"version": 1, "findings": [...]}`, each finding with `Found`'s fields."""
    return json.dumps({"version": JSON_VERSION, "findings": [each._asdict() for each in found]}, indent=2)


def as_github(found: Sequence[Found]) -> str:
    """Annotations of a pull request.

    See https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
    """
    return "\n".join(map(_annotation, map(_in_file, found)))


def _annotation(each: Found) -> str:
    level = {"note": "notice"}.get(_LEVELS[each.kind], _LEVELS[each.kind])
    title = f"dp2ddp {each.rule}".strip()
    given = {"file": each.file, "line": each.line, "col": each.column, "title": title}
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in given.items())
    return f"::{level} {properties}::{_escaped(each.message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def as_gitlab(found: Sequence[Found]) -> str:
    """A code quality report; see https://docs.gitlab.com/ci/testing/code_quality/."""
    return json.dumps(list(_issues(list(map(_in_file, found)))), indent=2)


def _issues(found: Sequence[Found]) -> Iterator[dict[str, Any]]:
    for each in found:
        yield {
            "description": each.message,
            "check_name": each.rule or "dp2ddp",
            "fingerprint": hashlib.sha256(repr(each).encode()).hexdigest(),
            "severity": _SEVERITIES[each.kind],
            "location": {"path": each.file, "lines": {"begin": each.line}},
        }


def as_sarif(found: Sequence[Found]) -> str:
    """SARIF 2.1.0; see https://docs.oasis-open.org/sarif/sarif/v2.1.0/."""
    named = {each.rule for each in found}
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
        }
        for rule in all_rules()
        if rule.id in named
    ]
    tool = {"driver": {"name": "dp2ddp", "version": __version__, "rules": rules}}
    run = {"tool": tool, "columnKind": "unicodeCodePoints", "results": [_result(_in_file(each)) for each in found]}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(each: Found) -> dict[str, Any]:
    region = {"startLine": each.line, "startColumn": each.column}
    location = {"physicalLocation": {"artifactLocation": {"uri": each.file.replace("\\", "/")}, "region": region}}
    rule = {"ruleId": each.rule} if each.rule else {}
    return {**rule, "level": _LEVELS[each.kind], "message": {"text": each.message}, "locations": [location]}


FORMATS: dict[str, Callable[[Sequence[Found]], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "gitlab": as_gitlab,
    "sarif": as_sarif,
}
