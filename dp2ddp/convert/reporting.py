"""Reports what was done: one report over one list of findings, for people, or in a form that machines read."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from click import style

from dp2ddp.command import terminal
from dp2ddp.command.terminal import counted
from dp2ddp.convert.findings import CHANGE, Found, found_in, in_order, refusal
from dp2ddp.convert.job import Job
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.running import how_to_run
from dp2ddp.errors import BadInput

#: So much of a kind is listed where all of it isn't asked for: a usual summary fits a screen.
_MOST = 6
#: Lines of the summary of one script.
_SCREEN = 10
_NOTHING_WRITTEN = style("nothing was written: what can't be converted is named above", bold=True, fg="red")


@dataclass(frozen=True)
class File:
    """One file, by the names that the user knows: what it is, what was written (None if nothing), what was done.

    Attributes:
        starts: whether it is started, and some file of its program changed.
    """

    name: str
    output: str | None
    conversion: Conversion
    starts: bool = False

    @cached_property
    def found(self) -> list[Found]:
        """What changed, and what needs a person."""
        return list(found_in(self.conversion, self.name))

    def as_data(self) -> dict[str, Any]:
        """What became of it, ready for `json.dumps`."""
        said = {name: getattr(self.conversion, name) for name in ("changed", "converted_before", "refused")}
        return {"input": self.name, "output": self.output, **said}


@dataclass(frozen=True)
class Report:
    """What became of a job.

    Attributes:
        started: the scripts that are started: those that were given, or those of the directory that were converted.
        files: these and all others that changed, or that notes are about.
        output: where the directory was written, None if it wasn't.
        warnings: what else the user should know about files: those that could not be read, and the like.
    """

    job: Job
    started: Sequence[File]
    files: Sequence[File]
    output: str | None = None
    warnings: Sequence[BadInput] = ()

    @property
    def directory(self) -> str | None:
        """The directory's name, None for scripts."""
        return None if self.job.tree is None else self.job.request.inputs[0]

    def called(self, name: str) -> str:
        """What the summary calls a file: from the directory, or from an absolute path's folder, which is named once."""
        top = self.directory if self.directory is not None else os.path.dirname(self.files[0].name)
        is_near = self.directory is not None or os.path.isabs(name)
        return os.path.relpath(name, top or ".") if is_near else name

    @property
    def changed(self) -> list[File]:
        """The files that changed."""
        return [each for each in self.files if each.conversion.changed]

    @property
    def starting(self) -> list[File]:
        """The scripts that start processes now; those that train by their names come first, and the outer ones."""
        found = [each for each in self.started if each.starts]
        paths = {each.name: PurePath(each.name) for each in found}
        names = re.compile("train|main")
        return sorted(found, key=lambda e: (not names.search(paths[e.name].stem), len(paths[e.name].parts)))

    @property
    def left_alone(self) -> list[tuple[str, BadInput]]:
        """The directory's scripts that were left as they are, and why."""
        shown, renamed = self.job.names.shown, self.job.names.renamed
        return [(shown(program.entry), renamed(error)) for program, error in self.job.outcome.refused]

    @cached_property
    def found(self) -> list[Found]:
        """What changed, and what needs a person, file by file; and which scripts were left alone."""
        return [found for each in self.files for found in each.found] + [refusal(*each) for each in self.left_alone]

    def as_data(self) -> dict[str, Any]:
        """What there is to say besides, ready for `json.dumps`."""
        return {
            "files": [each.as_data() for each in self.files],
            "entries": [each.name for each in self.started],
            "warnings": [str(each) for each in self.warnings],
            "left_alone": [{"input": name, "why": str(why)} for name, why in self.left_alone],
            "left_out": dict(self.job.tree.reasons if self.job.tree else {}),
        }


def of_job(job: Job, outputs: Mapping[str, str]) -> Report:
    """What became of a job, of which the files `outputs` (by path) were written."""
    conversions, outcome, shown, tree = job.outcome.conversions, job.outcome, job.names.shown, job.tree
    programs = {program.entry: program.files for program in outcome.programs}

    def file(path: str) -> File:
        starts = any(conversions[each].changed for each in programs.get(path, ()))
        return File(shown(path), outputs.get(path), conversions[path], starts)

    started = [path for path in (programs if tree is not None else job.given) if path in conversions]
    others = sorted(path for path, each in conversions.items() if each.changed or each.notes)
    files = dict.fromkeys([*started, *others])
    written = (
        None if tree is None or not job.request.writes or outcome.is_refused else job.request.output or str(tree.root)
    )
    warnings = [job.names.renamed(each) for each in job.warnings]
    return Report(job, [*map(file, started)], [*map(file, files)], written, warnings)


def show(report: Report) -> None:
    """Shows what was done: for people on standard error, in another form on standard output.

    JSON has all that there is to say; the others what needs a person.
    """
    request = report.job.request
    if request.form == "text":
        terminal.show_messages(lines_of(report, verbose=request.verbose))
    else:
        from dp2ddp.convert import formats  # with what only machines need

        found = in_order(report.found)
        if request.form == "json":
            page = {} if request.html is None else {"html": request.html}
            terminal.show_results([formats.as_json(found, {**report.as_data(), **page})])
        else:
            open_ones = [each for each in found if each.kind != CHANGE]
            terminal.show_results(filter(None, [formats.FORMATS[request.form](open_ones)]))
    if request.html is not None:
        terminal.show_messages([f"{style(request.html, bold=True)}: the same as a page, for a browser"])


def lines_of(report: Report, *, verbose: bool) -> Iterator[str]:
    """The summary for people: counts by what they mean first, then what needs a person, then how to run it.

    Of one script at most `_SCREEN` lines; with `verbose` all that there is to say.
    """
    job = report.job
    told = [*_head(report, verbose=verbose)]
    last = [] if job.outcome.is_refused else [*_tail(report, verbose=verbose)]
    notes = [found for each in report.files for found in each.found if found.kind != CHANGE]
    room = _SCREEN - len(told) - len(last) - 2 if report.directory is None else _MOST
    yield from told
    yield from _notes(report, notes, None if verbose else max(room, 1))
    if report.left_alone:
        yield style(f"{counted(len(report.left_alone), 'script')} left alone:", bold=True, fg="yellow")
        yield from listed((f"  {line}" for line in reasons(report)), None if verbose else _MOST)
    if job.outcome.is_refused:
        yield _NOTHING_WRITTEN
    yield from last


def _head(report: Report, *, verbose: bool) -> Iterator[str]:
    """What changed."""
    if report.directory is not None:
        yield _headline(report)
    yield from listed((_state(report, each) for each in report.files), None if verbose else _MOST)
    changes = [found for each in report.files for found in each.found if found.kind == CHANGE]
    yield from _effects(report, changes, verbose=verbose)


def _tail(report: Report, *, verbose: bool) -> Iterator[str]:
    """What else there is to know, and how to run it."""
    if report.warnings:
        yield style("please note:", bold=True, fg="yellow")
        yield from listed((f"  {each}" for each in report.warnings), None if verbose else _MOST)
    tree = report.job.tree
    if tree is not None and tree.left_out:
        yield "not looked at: " + ", ".join(f"{number} {why}" for why, number in sorted(tree.reasons.items()))
    steps = list(how_to_run(report)) if report.changed else []
    it = "it" if len(report.starting) == 1 else "them"
    first = next((step for step in steps if step.command), None)
    yield from (f"{style(f'Run {it}:', bold=True) if step is first else ' '} {step}" for step in steps)


def reasons(report: Report) -> list[str]:
    """Why scripts were left alone, each in a line."""
    return [str(why) if why.file == name else f"{name}: {why}" for name, why in report.left_alone]


def _headline(report: Report) -> str:
    if report.changed:
        total = len(report.job.tree.files if report.job.tree else ()) + len(report.job.extra())
        scripts = counted(len(report.starting), "script")
        what = f"{len(report.changed)} of {total} files changed, for {scripts}"
    else:
        what = "not converted" if any(each.conversion.notes for each in report.files) else "nothing to convert"
    return style(f"{report.directory}{_arrow(report.directory, report.output)}: {what}", bold=True)


def _arrow(name: str | None, output: str | None) -> str:
    """Where it went; an absolute path stands in the line that says how to run it."""
    return f" -> {output}" if output and output != name and not os.path.isabs(output) else ""


def _state(report: Report, file: File) -> str:
    """What became of a file, in a line."""
    done = file.conversion
    if done.converted_before:
        what = "converted already, nothing to do"
    elif done.changed:
        what = counted(len(done.edits), "change")
    elif report.changed and not done.refused:
        what = "no change"
    else:
        what = "not converted" if done.notes else "nothing to convert"
    if report.directory is not None:
        return style(f"{report.called(file.name)}: {what}", bold=True)
    arrow = _arrow(file.name, file.output) if done.changed else ""
    return style(f"{file.name if file is report.files[0] else report.called(file.name)}{arrow}: {what}", bold=True)


def _effects(report: Report, changes: Sequence[Found], *, verbose: bool) -> Iterator[str]:
    """How often the changes do what; which they are, where that is asked for."""
    by_effect: dict[str, list[Found]] = defaultdict(list)
    for each in sorted(changes, key=lambda each: each.rule):
        by_effect[each.effect].append(each)
    for effect, found in by_effect.items():
        yield f"{len(found):5}  {effect}"
        # The same said twice for one line of source is said once.
        lines = dict.fromkeys((f"{report.called(each.file)}:{each.place}", each.rule, each.message) for each in found)
        for place, rule_id, message in lines if verbose else ():
            yield f"         {style(place, dim=True)}  {style(rule_id, fg='cyan')}  {message}"


def _notes(report: Report, notes: Sequence[Found], few: int | None) -> Iterator[str]:
    """What needs a person; what is the same in several lines is said once."""
    places: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in notes:
        places[each.rule, each.message][report.called(each.file)].append(each.place)
    if notes:
        why = "`dp2ddp rules ID` says why"
        yield style(f"{counted(len(notes), 'note')} for a person to look at ({why}):", bold=True, fg="yellow")
    lines = []
    for (rule_id, message), found in places.items():
        place = style(", ".join(f"{name}:{', '.join(dict.fromkeys(each))}" for name, each in found.items()), bold=True)
        lines.append("  " + "  ".join(filter(None, [place, rule_id and style(rule_id, fg="cyan"), message])))
    yield from listed(lines, few)


def listed(lines: Iterable[str], most: int | None) -> Iterator[str]:
    """`lines`, of more than `most` the first, and how many there are besides."""
    all_lines = list(lines)
    shown = all_lines if most is None or len(all_lines) <= most + 1 else all_lines[:most]
    yield from shown
    if len(shown) < len(all_lines):
        yield f"  and {len(all_lines) - len(shown)} more, which --verbose shows"
