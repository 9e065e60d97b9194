"""Reports what was done: one report over one list of findings, for people, or in a form that machines read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from click import style

from dp2ddp.command import terminal
from dp2ddp.convert.findings import CHANGE, Found, found_in, in_order, refusal
from dp2ddp.convert.job import Job, Request
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.running import how_to_run
from dp2ddp.errors import BadInput
from dp2ddp.project import vendor
from dp2ddp.rules import rule

#: What is said of a script that was asked for, and that needs no conversion.
IDLE = "never wraps a model, and stays as it is"
#: Said of a script that works on one device.
ONE_DEVICE = "no DataParallel in it works on several devices, so it stays one process"
#: So much of a kind is listed where all of it isn't asked for: a usual summary fits a screen.
_FEW, _MOST = 3, 6
_NOTHING_WRITTEN = style("nothing was written: what can't be converted is named above", bold=True, fg="red")


@dataclass(frozen=True)
class File:
    """One file, by the names that the user knows: what it is, what was written (None if nothing), what was done.

    Attributes:
        unchanged: what to say of it if it neither changes nor has notes: what became of its program.
    """

    name: str
    output: str | None
    conversion: Conversion
    unchanged: str | None = None

    @cached_property
    def found(self) -> list[Found]:
        """What changed, and what needs a person."""
        return list(found_in(self.conversion, self.name))

    @property
    def notes(self) -> list[Found]:
        """What needs a person."""
        return [each for each in self.found if each.kind != CHANGE]

    def as_data(self) -> dict[str, Any]:
        """What became of it, ready for `json.dumps`."""
        done = self.conversion
        return {
            "input": self.name,
            "output": self.output,
            "changed": done.changed,
            "converted_before": done.converted_before,
            "refused": done.refused,
        }


def of_program(paths: Iterable[str], conversions: Mapping[str, Conversion]) -> str | None:
    """What became of a script made of the files `paths`, where it doesn't change itself; None for nothing at all."""
    files = [conversions[path] for path in paths]
    if any(each.on_one_device for each in files):
        return ONE_DEVICE
    if any(each.changed for each in files):
        return "needs no change itself"
    return "not converted" if any(each.notes for each in files) else None


@dataclass(frozen=True)
class Report:
    """What became of scripts that were given one by one, or of a directory.

    Attributes:
        started: the scripts that are started: those that were given, or those of the directory that were converted.
        files: these and all others that changed, or that notes are about.
        vendored: the runtime lies beside the output.
        refused: a script that was asked for can't be converted, so nothing was written.
        warnings: what else the user should know about files: those that could not be read, and the like.
        unreached: what stays as it is in files that are converted, as no script with a wrap comes to it.
        directory: its name, None for scripts.
        output: where the directory was written, None if it wasn't.
        total: the number of files in the directory.
        left_alone: its scripts that were left as they are, and why.
        left_out: how much of it was left out, by reason.
        touched: its other scripts that import files that changed, and which.
        commands: the commands that start its scripts, by the script's name.
    """

    started: Sequence[File]
    files: Sequence[File]
    vendored: bool
    refused: bool
    warnings: Sequence[BadInput]
    unreached: Mapping[str, Sequence[str]] = field(default_factory=dict)
    directory: str | None = None
    output: str | None = None
    total: int = 0
    left_alone: Sequence[tuple[str, BadInput]] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    touched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def changed(self) -> list[File]:
        """The files that changed."""
        return [each for each in self.files if each.conversion.changed]

    @property
    def starting(self) -> list[File]:
        """The scripts that start processes now."""
        return [each for each in self.started if each.unchanged not in (IDLE, ONE_DEVICE)]

    def found(self) -> list[Found]:
        """What changed, and what needs a person, in all files; and which scripts were left alone."""
        alone = (refusal(name, why) for name, why in self.left_alone)
        return in_order([*(found for each in self.files for found in each.found), *alone])

    def as_data(self) -> dict[str, Any]:
        """What there is to say besides, ready for `json.dumps`."""
        return {
            "files": [each.as_data() for each in self.files],
            "entries": [each.name for each in self.started],
            "warnings": [str(each) for each in self.warnings],
            "left_alone": [{"input": name, "why": str(why)} for name, why in self.left_alone],
            "left_out": dict(self.left_out),
            "imported_by": {name: list(files) for name, files in self.touched.items()},
        }


def of_job(job: Job, outputs: Mapping[str, str]) -> Report:
    """What became of a job, of which the files `outputs` (by path) were written."""
    conversions, outcome, shown = job.outcome.conversions, job.outcome, job.names.shown
    programs = {program.entry: program.files for program in outcome.programs}
    idle = [program.entry for program in outcome.idle]

    def file(path: str) -> File:
        state = IDLE if path in idle else of_program(programs.get(path, ()), conversions)
        return File(shown(path), outputs.get(path), conversions[path], state)

    request, tree = job.request, job.tree
    started = list(programs) if tree is not None else list(job.given)
    listed = [*started, *(path for path in idle if path not in started)]
    others = sorted(path for path, each in conversions.items() if (each.changed or each.notes) and path not in listed)
    written = None if tree is None or not request.writes or outcome.is_refused else request.output or str(tree.root)
    beside = [Path(place).parent for path in started for place in (outputs.get(path), shown(path)) if place]
    beside += [Path(top) for top in (tree and tree.root, written) if top]
    return Report(
        [file(path) for path in started],
        [file(path) for path in [*listed, *others]],
        request.vendored,
        outcome.is_refused,
        [*map(job.names.renamed, job.warnings), *vendor.older(beside)],
        {shown(path): done.unreached for path, done in sorted(conversions.items()) if done.unreached},
        directory=None if tree is None else request.inputs[0],
        output=written,
        total=0 if tree is None else len(tree.files) + len(job.extra()),
        left_alone=[(shown(program.entry), job.names.renamed(error)) for program, error in outcome.refused],
        left_out={} if tree is None else tree.reasons,
        touched={shown(path): list(map(shown, files)) for path, files in job.touched.items()},
        commands={shown(path): names for path, names in job.commands.items()},
    )


def show(report: Report, request: Request) -> None:
    """Shows what was done: for people on standard error, in another form on standard output.

    JSON has all that there is to say; the others what needs a person.
    """
    if request.form == "text":
        terminal.show_messages(lines_of(report, verbose=request.verbose))
    else:
        from dp2ddp.convert import formats  # with what only machines need

        found = report.found()
        if request.form == "json":
            page = {} if request.html is None else {"html": request.html}
            terminal.show_results([formats.as_json(found, {**report.as_data(), **page})])
        else:
            open_ones = [each for each in found if each.kind != CHANGE]
            terminal.show_results(filter(None, [formats.FORMATS[request.form](open_ones)]))
    if request.html is not None:
        terminal.show_messages([f"{style(request.html, bold=True)}: the same as a page, for a browser"])


def lines_of(report: Report, *, verbose: bool) -> Iterator[str]:
    """The summary for people: counts by what they mean first, then what needs a person; all lines with `verbose`."""
    few = None if verbose else _MOST
    if report.directory is not None:
        yield _headline(report)
    yield from listed(map(_state, report.files), few)
    yield from _effects(report.files, verbose=verbose)
    yield from _notes(report.files, few)
    if report.left_alone:
        yield style(f"{count(report.left_alone, 'script')} left alone:", bold=True, fg="yellow")
        yield from listed((f"  {line}" for line in reasons(report)), few)
    if report.refused:
        yield _NOTHING_WRITTEN
        return
    if report.unreached:
        found = "; ".join(f"{name}: {', '.join(names)}" for name, names in report.unreached.items())
        yield f"left as they are, as no script that wraps a model comes to them: {found}"
    yield from _touched(report, verbose=verbose)
    if report.warnings:
        yield style("please note:", bold=True, fg="yellow")
        yield from listed((f"  {each}" for each in report.warnings), few)
    if report.left_out:
        yield "not looked at: " + ", ".join(f"{number} {reason}" for reason, number in sorted(report.left_out.items()))
    if report.changed:
        steps = list(how_to_run(report))
        it = "it" if len(report.starting) == 1 else "them"
        yield from [style(f"How to run {it}, with your own arguments:", bold=True)] if steps else ()
        yield from (f"  {step}" for step in steps)


def reasons(report: Report) -> list[str]:
    """Why scripts were left alone, each in a line."""
    return [str(why) if why.file == name else f"{name}: {why}" for name, why in report.left_alone]


def _headline(report: Report) -> str:
    arrow = f" -> {report.output}" if report.output and report.output != report.directory else ""
    if report.changed:
        changed = f"{len(report.changed)} of {report.total} files changed"
        return style(f"{report.directory}{arrow}: {changed}, for {count(report.starting, 'script')}", bold=True)
    noted = any(each.conversion.notes for each in report.files)
    return style(f"{report.directory}{arrow}: {'not converted' if noted else 'nothing to convert'}", bold=True)


def _state(file: File) -> str:
    """What became of a file, in a line."""
    done = file.conversion
    arrow = f" -> {file.output}" if done.changed and file.output and file.output != file.name else ""
    if done.converted_before:
        what = "converted already, nothing to do"
    elif done.changed:
        what = count(done.edits, "change")
    elif done.notes:
        what = "not converted"
    else:
        what = file.unchanged or "nothing to convert"
    return style(f"{file.name}{arrow}: {what}", bold=True)


def _effects(files: Sequence[File], *, verbose: bool) -> Iterator[str]:
    """How often the changes do what; which they are, where that is asked for."""
    by_effect: dict[str, list[Found]] = defaultdict(list)
    changed = (file for file in files if file.conversion.changed)
    changes = (each for file in changed for each in zip(file.conversion.edits, file.found))  # changes come first
    for edit, each in sorted(changes, key=lambda each: each[0].rule):
        known = rule(edit.rule)
        by_effect[known.effect_of(edit) if known else edit.rule].append(each)
    for effect, found in by_effect.items():
        yield f"{len(found):5}  {effect}"
        # The same said twice for one line of source is said once.
        lines = dict.fromkeys((f"{each.file}:{each.place}", each.rule, each.message) for each in found)
        for place, rule_id, message in lines if verbose else ():
            yield f"         {style(place, dim=True)}  {style(rule_id, fg='cyan')}  {message}"


def _notes(files: Sequence[File], few: int | None) -> Iterator[str]:
    """What needs a person; what is the same in several lines is said once."""
    places: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    notes = [note for file in files for note in file.notes]
    for each in notes:
        places[each.rule, each.message][each.file].append(each.place)
    if places:
        total = len(notes)
        yield style(f"{total} note{'s' if total > 1 else ''} for a person to look at:", bold=True, fg="yellow")
    lines = []
    for (rule_id, message), found in places.items():
        place = style(", ".join(f"{name}:{', '.join(dict.fromkeys(each))}" for name, each in found.items()), bold=True)
        lines.append("  " + "  ".join(filter(None, [place, rule_id and style(rule_id, fg="cyan"), message])))
    yield from listed(lines, few)


def _touched(report: Report, *, verbose: bool) -> Iterator[str]:
    if report.touched:
        yield style("files that changed are also imported by these, which need dp2ddp_runtime, too:", bold=True)
    few = None if verbose else _FEW
    lines = []
    for name, files in report.touched.items():
        more = f" and {len(files) - _FEW} more" if few and len(files) > _FEW else ""
        lines.append(f"  {name}: {', '.join(files[:few])}{more}")
    yield from listed(lines, few)


def count(things: Collection[object], name: str) -> str:
    """`3 changes`, `1 note`."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def listed(lines: Iterable[str], most: int | None) -> Iterator[str]:
    """`lines`, of more than `most` the first, and how many there are besides."""
    all_lines = list(lines)
    shown = all_lines if most is None or len(all_lines) <= most + 1 else all_lines[:most]
    yield from shown
    if len(shown) < len(all_lines):
        yield f"  and {len(all_lines) - len(shown)} more, which --verbose shows"
