"""Puts together what the template shows."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Collection, Mapping, Sequence

from dp2ddp.convert import report
from dp2ddp.convert.overview import File, Project
from dp2ddp.convert.page import content as parts
from dp2ddp.convert.page import sides, verdict
from dp2ddp.convert.page.flow import Flow
from dp2ddp.convert.page.flows import flows_of
from dp2ddp.convert.page.material import Material
from dp2ddp.convert.page.verdict import Summary
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.programs import Program
from dp2ddp.convert.request import Request
from dp2ddp.convert.summary import to_run
from dp2ddp.errors import BadInput
from dp2ddp.project import text_files
from dp2ddp.project.text_files import STANDARD

#: Of so many files the code is shown from the start.
_FEW = 3
#: Lines that are shown above and below one that can't be converted.
_AROUND = 3


def content(material: Material) -> dict[str, object]:
    """What the template shows of a conversion."""
    summary, conversions = material.summary, material.outcome.conversions
    names = {path: material.names.shown(path) for path in conversions}
    files = _files(summary)
    flows = _flows(material)
    wanted = parts.pointed_at(flows, names)
    noted = [each for each in files if each.conversion.changed or each.conversion.notes]
    shown = [
        parts.Shown(f"f{number}", each, material.texts[each.name], _lines(each, wanted), len(noted) <= _FEW)
        for number, each in enumerate(noted)
    ]
    written = material.request.writes or material.request.output == STANDARD
    started = _started(summary)
    known = {each.name for each in noted}
    short = _short(names.values())
    rules = list(parts.rules_of(shown))
    steps, remarks = _running(summary, material.request.inputs, changed=any(each.conversion.changed for each in noted))
    return {
        "name": ", ".join(material.request.inputs),
        "verdict": verdict.of_summary(summary, started, noted, written=written and not summary.refused),
        "files": shown,
        "tree": parts.tree(shown),
        "ids": {each.file.name: each.id for each in shown},
        "names": names,
        "short": short,
        "where": _Where(short, conversions, names),
        "unchanged": sorted(name for name in names.values() if name not in known),
        "error": None,
        "excerpt": [],
        "todos": [todo for each in shown for todo in each.todos()],
        "refused": summary.refused,
        "rules": rules,
        "linked": {each.rule.id for each in rules},
        "pictures": [parts.picture(flow, names.get(flow.entry, flow.entry)) for flow in flows],
        "steps": steps,
        "remarks": remarks,
        "warnings": [str(each) for each in _warnings(summary)],
        "left_alone": [str(why) if why.file == name else f"{name}: {why}" for name, why in _left_alone(summary)],
    }


def refusal(request: Request, error: BadInput) -> dict[str, object]:
    """What the template shows where an input can't be converted at all."""
    nothing = ("files", "unchanged", "todos", "rules", "pictures", "steps", "remarks", "warnings", "left_alone")
    return {
        "name": ", ".join(request.inputs),
        "verdict": verdict.of_error(error),
        "tree": parts.tree([]),
        "ids": {},
        "names": {},
        "short": {},
        "where": None,
        "linked": (),
        "refused": True,
        "error": error,
        "excerpt": _excerpt(error),
        **dict.fromkeys(nothing, ()),
    }


class _Where:
    """What to call a line of a file, by its name: `train.py:12`, of a notebook `train.ipynb:cell 3:2`."""

    def __init__(
        self, short: Mapping[str, str], conversions: Mapping[str, Conversion], names: Mapping[str, str]
    ) -> None:
        self._short = short
        self._places = {names[path]: each.places for path, each in conversions.items()}

    def __call__(self, name: str, line: int) -> str:
        places = self._places.get(name)
        return f"{self._short.get(name, name)}:{line if places is None else places.of(line)}"


def _excerpt(error: BadInput) -> list[tuple[int, str]]:
    """The lines around an error, with their numbers; none where the file isn't at hand."""
    if error.line is None or not os.path.isfile(error.file):
        return []
    try:
        lines = sides.lines_of(text_files.read(error.file).text)
    except BadInput:
        return []
    return [
        (number, lines[number - 1])
        for number in range(error.line - _AROUND, error.line + _AROUND + 1)
        if 0 < number <= len(lines)
    ]


def _short(names: Collection[str]) -> dict[str, str]:
    """The names without the folder that all of them lie in."""
    folders = [posixpath.dirname(name) for name in names]
    if not folders or any(posixpath.isabs(folder) != posixpath.isabs(folders[0]) for folder in folders):
        return {}
    top = posixpath.commonpath(folders)
    return {name: posixpath.relpath(name, top) if top else name for name in names}


def _files(summary: Summary) -> list[File]:
    return list(summary.files) if isinstance(summary, Project) else [*summary.given, *summary.others]


def _started(summary: Summary) -> Sequence[File]:
    return summary.entries if isinstance(summary, Project) else summary.given


def _warnings(summary: Summary) -> Sequence[BadInput]:
    return summary.warnings if isinstance(summary, Project) else summary.unread


def _left_alone(summary: Summary) -> Sequence[tuple[str, BadInput]]:
    return summary.left_alone if isinstance(summary, Project) else ()


def _flows(material: Material) -> list[Flow]:
    """The flows of what was converted; of nothing else, as it would show what doesn't happen."""
    outcome = material.outcome
    if outcome.is_refused or not outcome.changed():
        return []
    programs = outcome.programs
    if not programs:  # standard input, which has no place among other files
        programs = [Program(name, {name: text}) for name, text in material.texts.items()]
    changed = set(outcome.changed())
    return flows_of([each for each in programs if changed & set(each.files)], material.request.options)


def _lines(file: File, wanted: dict[str, set[int]]) -> frozenset[int]:
    return frozenset(wanted.get(file.name, set()) | {note.span.start.line for note in file.conversion.notes})


def _running(summary: Summary, inputs: Sequence[str], *, changed: bool) -> tuple[list[report.Step], list[str]]:
    """How to run it, as the terminal says it: commands, and what else there is to say."""
    if not changed or summary.refused:
        return [], []
    running = to_run(summary)
    steps: list[report.Step] = []
    remarks: list[str] = []
    if len(running.scripts) == 1 and report.is_notebook(running.scripts[0]):
        remarks.append(report.CELLS)
    elif running.scripts:
        if running.unwritten is not None:
            command = f"dp2ddp convert {shlex.join(inputs)} {running.unwritten}"
            steps.append(report.Step(command, "writes what is shown here; then", False))
        pairs = zip(running.scripts, running.starts)
        steps += (step for script, starts in pairs for step in report.steps(script, starts, confused=running.confused))
    if running.scripts and not running.vendored:
        remarks.append(report.what_it_imports(len(running.scripts)))
    steps += report.steps_for_commands(running.commands)
    if running.commands:
        remarks.append(f"What commands start: {report.FOR_COMMANDS}")
    return steps, remarks
