"""Summaries and diffs of conversions that touch several files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from click import style

from dp2ddp.convert import report
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.errors import BadInput
from dp2ddp.project.text_files import TextFile

#: What is said of a script that was asked for, and that needs no conversion.
IDLE = "never comes to a wrap, and stays as it is"
_FEW = 3


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

    def lines(self) -> Iterator[str]:
        """What became of it."""
        if self.unchanged and not (self.conversion.changed or self.conversion.notes):
            yield style(f"{self.name}: {self.unchanged}", bold=True)
        else:
            yield from report.summary_lines(self.conversion, self.name, self.output)

    def as_data(self) -> dict[str, Any]:
        return report.as_data(self.conversion, self.name, self.output)


def of_program(paths: Iterable[str], conversions: Mapping[str, Conversion]) -> str | None:
    """What became of a script made of the files `paths`, where it doesn't change itself; None for nothing at all."""
    files = [conversions[path] for path in paths]
    if any(each.changed for each in files):
        return "needs no change itself"
    return "not converted" if any(each.notes for each in files) else None


@dataclass(frozen=True)
class Scripts:
    """What became of scripts that were given one by one.

    Attributes:
        given: the scripts.
        others: files that they import and that have to change, too, or that notes are about.
        unread: files that they import and that could not be read.
        vendored: the runtime lies beside the output.
        refused: one of them can't be converted, so nothing was written.
    """

    given: Sequence[File]
    others: Sequence[File]
    unread: Sequence[BadInput]
    vendored: bool
    refused: bool = False


@dataclass(frozen=True)
class Project:
    """What became of a directory.

    Attributes:
        name: the directory.
        output: where it was written, None if it wasn't.
        entries: the scripts that are started, and that were converted.
        files: these scripts, and the other files that changed, or that notes are about.
        total: the number of files in it.
        left_alone: scripts that were left as they are, and why.
        warnings: what else the user should know about files.
        left_out: how much was left out, by reason.
        vendored: the runtime lies beside each script.
        touched: other scripts that import files that changed, and which.
        commands: the commands that start entries, by the entry's name.
        refused: a script that was asked for can't be converted, so nothing was written.
    """

    name: str
    output: str | None
    entries: Sequence[File]
    files: Sequence[File]
    total: int
    left_alone: Sequence[tuple[str, BadInput]]
    warnings: Sequence[BadInput]
    left_out: Mapping[str, int]
    vendored: bool
    touched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: bool = False


_NOTHING_WRITTEN = style("nothing was written: what can't be converted is named above", bold=True, fg="red")


def show_diffs(changes: Iterable[tuple[TextFile, Conversion]], names: Mapping[str, str] | None = None) -> None:
    """Shows the unified diffs on standard output, in colors on a terminal."""
    for source, conversion in changes:
        name = source.name if names is None else names[source.name]
        text = report.diff(name, source.text, conversion.new_text)
        if sys.stdout.isatty():
            report.show_lines([report.colored(text).removesuffix("\n")], to_error=False)
        else:
            # In the file's own bytes, so that the diff can be applied to it.
            sys.stdout.buffer.write(text.encode(source.encoding))


def show_scripts(done: Scripts, *, as_json: bool, html: str | None = None) -> None:
    """The summary on standard error; `html` is the page that tells more, if there is one."""
    if as_json:
        _show_json(_scripts_data(done), html)
    else:
        report.show_lines([*_scripts_lines(done), *_page_lines(html)])


def show_project(done: Project, *, as_json: bool, html: str | None = None) -> None:
    """The summary on standard error; `html` is the page that tells more, if there is one."""
    if as_json:
        _show_json(_project_data(done), html)
    else:
        report.show_lines([*_project_lines(done), *_page_lines(html)])


def _show_json(data: Mapping[str, Any], html: str | None) -> None:
    page = {} if html is None else {"html": html}
    print(json.dumps({**data, **page}, indent=2), file=sys.stderr)


def _page_lines(html: str | None) -> Iterator[str]:
    if html is not None:
        yield f"{style(html, bold=True)}: all of this as a page, for a browser"


def _scripts_data(done: Scripts) -> dict[str, Any]:
    """One script as ever; what not every script has is only there where it is."""
    others = {"others": [each.as_data() for each in done.others]} if done.others else {}
    warnings = {"warnings": [str(each) for each in done.unread]} if done.unread else {}
    if len(done.given) == 1:
        return {**done.given[0].as_data(), **others, **warnings}
    return {"files": [each.as_data() for each in done.given], **others, **warnings}


def _scripts_lines(done: Scripts) -> Iterator[str]:
    written = [each for each in done.others if each.output is not None or not each.conversion.changed]
    for each in [*done.given, *written]:
        yield from each.lines()
    if done.refused:
        yield _NOTHING_WRITTEN
        return
    missing = [each for each in done.others if each not in written]
    if missing:
        yield style(
            f"{report.count(missing, 'other file')} must change, too; convert with -o DIR/", bold=True, fg="yellow"
        )
        for each in missing:
            lines = sorted({edit.span.start[0] for edit in each.conversion.edits})
            places = ", ".join(map(str, lines))
            yield f"  {style(each.name, bold=True)}  {report.count(each.conversion.edits, 'change')}: {places}"
    yield from _warnings("not looked into", done.unread)
    changed = any(each.conversion.changed for each in [*done.given, *done.others])
    yield from _how_to_run(done.given if changed else [], done.vendored)


def _project_data(done: Project) -> dict[str, Any]:
    return {
        "input": done.name,
        "output": done.output,
        "entries": [each.name for each in done.entries],
        "files": [each.as_data() for each in done.files],
        "refused": [{"input": name, "why": str(why)} for name, why in done.left_alone],
        "warnings": [str(each) for each in done.warnings],
        "left_out": dict(done.left_out),
        "touched": {name: list(files) for name, files in done.touched.items()},
    }


def _project_lines(done: Project) -> Iterator[str]:
    changed = [each for each in done.files if each.conversion.changed]
    arrow = f" -> {done.output}" if done.output and done.output != done.name else ""
    if changed:
        scripts = report.count(done.entries, "script")
        yield style(f"{done.name}{arrow}: {len(changed)} of {done.total} files changed, for {scripts}", bold=True)
    else:
        noted = any(each.conversion.notes for each in done.files)
        yield style(f"{done.name}{arrow}: {'not converted' if noted else 'nothing to convert'}", bold=True)
    for each in done.files:
        yield from each.lines()
    if done.left_alone:
        yield style(f"{report.count(done.left_alone, 'script')} left alone:", bold=True, fg="yellow")
        for name, why in done.left_alone:
            yield f"  {why}" if why.file == name else f"  {name}: {why}"
    if done.refused:
        yield _NOTHING_WRITTEN
        return
    yield from _touched(done)
    yield from _warnings("to be known", done.warnings)
    if done.left_out:
        yield "left out: " + ", ".join(f"{number} {reason}" for reason, number in sorted(done.left_out.items()))
    commands = [name for each in done.entries for name in done.commands.get(each.name, ())]
    yield from _how_to_run([each for each in done.entries if changed and each.name not in done.commands], done.vendored)
    if changed and commands:
        yield from report.how_to_run_commands(commands)


def _touched(done: Project) -> Iterator[str]:
    if done.touched:
        yield style("files that changed are also imported by, and need dp2ddp_runtime there:", bold=True)
    for name, files in done.touched.items():
        more = f" and {len(files) - _FEW} more" if len(files) > _FEW else ""
        yield f"  {name}: {', '.join(files[:_FEW])}{more}"


def _warnings(title: str, warnings: Sequence[BadInput]) -> Iterator[str]:
    if warnings:
        yield style(f"{title}:", bold=True, fg="yellow")
    for each in warnings:
        yield f"  {each}"


def _how_to_run(scripts: Sequence[File], vendored: bool) -> Iterator[str]:
    if len(scripts) == 1:
        yield from report.how_to_run(scripts[0].name, scripts[0].output, vendored)
    elif scripts:
        yield from report.how_to_run_several([each.output or each.name for each in scripts], vendored)
