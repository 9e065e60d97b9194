"""What was done, for people: counts by what they mean first, then what needs a person; lines with `--verbose`."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from click import style

from dp2ddp.convert.overview import IDLE, ONE_DEVICE, File, Project, Scripts
from dp2ddp.convert.report import (
    Running,
    Starts,
    confuses_torchrun,
    count,
    how_to_run,
    how_to_run_commands,
    line_of,
    listed,
    starts,
)
from dp2ddp.errors import BadInput
from dp2ddp.rewrite.edits import Edit
from dp2ddp.rules import rule

#: So much of a kind is listed where all of it isn't asked for: a usual script's summary fits a screen.
_FEW = 3
#: What a folder to write to may be called.
_FOLDER = "converted/"
_MOST = 6
_NOTHING_WRITTEN = style("nothing was written: what can't be converted is named above", bold=True, fg="red")


def scripts_lines(done: Scripts, *, verbose: bool) -> Iterator[str]:
    """The summary of scripts that were given one by one."""
    files = [*done.given, *done.others]
    yield from _files(files, verbose=verbose)
    if done.refused:
        yield _NOTHING_WRITTEN
        return
    yield from _unreached(done.unreached)
    yield from _warnings("not looked into", done.unread, verbose=verbose)
    if any(each.conversion.changed for each in files):
        yield from _how_to_run_scripts(done)


def _how_to_run_scripts(done: Scripts) -> Iterator[str]:
    names = [each.name for each in done.given]
    written = [each.output for each in done.given if each.output is not None]
    if written and written != names and any(each.conversion.changed for each in done.others):
        yield "The folder has the files that changed: copy them over a copy of the project, to run it there."
    running = to_run(done)
    yield from how_to_run(running)


def to_run(done: Scripts | Project) -> Running:
    """What there is to run; only where something changed."""
    running = _to_run_project(done) if isinstance(done, Project) else _to_run_scripts(done)
    files = done.files if isinstance(done, Project) else [*done.given, *done.others]
    return running._replace(confused=any(confuses_torchrun(each.conversion.new_text) for each in files))


def _starts(scripts: Sequence[File], files: Sequence[File]) -> tuple[Starts, ...]:
    """What a start of each script means: what its own `ddp.setup()` says, or that of the files that it imports."""
    everywhere = starts(edit for file in files for edit in file.conversion.edits)
    return tuple(starts(script.conversion.edits) or everywhere or Starts.VISIBLE for script in scripts)


def _to_run_scripts(done: Scripts) -> Running:
    started = [each for each in done.given if each.unchanged not in (IDLE, ONE_DEVICE)]
    outputs = [each for each in started if each.output is not None]
    kinds = _starts(outputs or started, [*done.given, *done.others])
    names = [each.name for each in started]
    written = [each.output for each in started if each.output is not None]
    if written or any(name.startswith("<") for name in names):
        return Running(written or ["train_ddp.py"], vendored=done.vendored, starts=kinds)
    if len(names) == 1 and not any(each.conversion.changed for each in done.others):
        fresh = f"{PurePath(names[0]).stem}_ddp.py"
        return Running([fresh], unwritten=f"-o {shlex.quote(fresh)}", vendored=done.vendored, starts=kinds)
    # Beside files that don't change; those are not copied for scripts that are given one by one.
    return Running(names, unwritten="--in-place", vendored=done.vendored, starts=kinds)


def _to_run_project(done: Project) -> Running:
    entries = [each for each in done.entries if each.unchanged != ONE_DEVICE]
    scripts = [each for each in entries if each.name not in done.commands]
    fresh = [os.path.join(_FOLDER, os.path.relpath(each.name, done.name)) for each in scripts]
    files = [each.output or new for each, new in zip(scripts, fresh)]
    commands = [name for each in done.entries for name in done.commands.get(each.name, ())]
    kinds = _starts(scripts, done.files)
    return Running(files, None if done.output else f"-o {_FOLDER}", commands, done.vendored, kinds)


def project_lines(done: Project, *, verbose: bool) -> Iterator[str]:
    """The summary of a directory."""
    changed = [each for each in done.files if each.conversion.changed]
    arrow = f" -> {done.output}" if done.output and done.output != done.name else ""
    if changed:
        started = count([each for each in done.entries if each.unchanged != ONE_DEVICE], "script")
        yield style(f"{done.name}{arrow}: {len(changed)} of {done.total} files changed, for {started}", bold=True)
    else:
        noted = any(each.conversion.notes for each in done.files)
        yield style(f"{done.name}{arrow}: {'not converted' if noted else 'nothing to convert'}", bold=True)
    yield from _files(done.files, verbose=verbose)
    if done.left_alone:
        yield style(f"{count(done.left_alone, 'script')} left alone:", bold=True, fg="yellow")
        reasons = (f"  {why}" if why.file == name else f"  {name}: {why}" for name, why in done.left_alone)
        yield from listed(reasons, None if verbose else _MOST)
    if done.refused:
        yield _NOTHING_WRITTEN
        return
    yield from _unreached(done.unreached)
    yield from _touched(done, verbose=verbose)
    yield from _warnings("to be known", done.warnings, verbose=verbose)
    if done.left_out:
        yield "left out: " + ", ".join(f"{number} {reason}" for reason, number in sorted(done.left_out.items()))
    running = to_run(done)
    if changed and running.scripts:
        yield from how_to_run(running)
    if changed and running.commands:
        yield from how_to_run_commands(running.commands)


def _files(files: Sequence[File], *, verbose: bool) -> Iterator[str]:
    yield from listed(map(_state, files), None if verbose else _MOST)
    yield from _effects(files, verbose=verbose)
    yield from _notes(files, verbose=verbose)


def _state(file: File) -> str:
    """What became of a file, in a line."""
    done = file.conversion
    arrow = ""
    if done.converted_before:
        what = "converted already, nothing to do"
    elif done.changed:
        arrow = f" -> {file.output}" if file.output and file.output != file.name else ""
        what = count(done.edits, "change")
    elif done.notes:
        what = "not converted"
    else:
        what = file.unchanged or "nothing to convert"
    return style(f"{file.name}{arrow}: {what}", bold=True)


def _effects(files: Sequence[File], *, verbose: bool) -> Iterator[str]:
    """How often the changes do what; which they are, where that is asked for."""
    by_effect: dict[str, list[tuple[str, Edit]]] = defaultdict(list)
    changed = [file for file in files if file.conversion.changed]
    edits = [
        (f"{file.name}:{line_of(edit, file.conversion)}", edit) for file in changed for edit in file.conversion.edits
    ]
    for place, edit in sorted(edits, key=lambda each: each[1].rule):
        by_effect[_effect(edit)].append((place, edit))
    for effect, found in by_effect.items():
        yield f"{len(found):5}  {effect}"
        # The same said twice for one line of source is said once.
        lines = dict.fromkeys((place, edit.rule, edit.reason) for place, edit in found)
        for place, rule_id, reason in lines if verbose else ():
            yield f"         {style(place, dim=True)}  {style(rule_id, fg='cyan')}  {reason}"


def _effect(edit: Edit) -> str:
    found = rule(edit.rule)
    return found.effect_of(edit) if found else edit.rule


def _notes(files: Sequence[File], *, verbose: bool) -> Iterator[str]:
    """What needs a person; what is the same in several lines of a file is said once."""
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for file in files:
        for note in file.conversion.notes:
            places[file.name, note.rule, f"{note.what}; {note.todo}"].append(line_of(note, file.conversion))
    if not places:
        return
    total = sum(map(len, places.values()))
    yield style(f"{total} note{'s' if total > 1 else ''}, to be looked at by a person:", bold=True, fg="yellow")
    lines = (_note(name, rule_id, what, found) for (name, rule_id, what), found in places.items())
    yield from listed(lines, None if verbose else _MOST)


def _note(name: str, rule_id: str, what: str, lines: Sequence[str]) -> str:
    place = f"{name}:{', '.join(dict.fromkeys(lines))}"
    return "  " + "  ".join(filter(None, [style(place, bold=True), rule_id and style(rule_id, fg="cyan"), what]))


def _unreached(parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """One line for what stays as it is, since no script that wraps a model comes to it."""
    if parts:
        found = "; ".join(f"{name}: {', '.join(names)}" for name, names in parts.items())
        yield f"left as they are, as no script that wraps a model comes to them: {found}"


def _touched(done: Project, *, verbose: bool) -> Iterator[str]:
    if done.touched:
        yield style("files that changed are also imported by, and need dp2ddp_runtime there:", bold=True)
    few = None if verbose else _FEW
    lines = []
    for name, files in done.touched.items():
        more = f" and {len(files) - _FEW} more" if few and len(files) > _FEW else ""
        lines.append(f"  {name}: {', '.join(files[:few])}{more}")
    yield from listed(lines, few)


def _warnings(title: str, warnings: Sequence[BadInput], *, verbose: bool) -> Iterator[str]:
    if warnings:
        yield style(f"{title}:", bold=True, fg="yellow")
    yield from listed((f"  {each}" for each in warnings), None if verbose else _MOST)
