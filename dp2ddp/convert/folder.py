"""Converts a project: a directory, with all that is in it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dp2ddp.command import progress
from dp2ddp.convert import diffs, entry_choice, notebooks, page, programs, reporting
from dp2ddp.convert.display_paths import DisplayPaths
from dp2ddp.convert.programs import Outcome, Program
from dp2ddp.convert.request import NOTES_OPEN, REFUSED, Request
from dp2ddp.errors import BadInput, blamed
from dp2ddp.project import entries, placing, vendor, wrapcalls
from dp2ddp.project import tree as trees
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.project.text_files import STANDARD, check_writable
from dp2ddp.project.tree import Tree


@dataclass(frozen=True)
class _Job:
    """A project as read, and what became of it; by paths relative to its folder."""

    request: Request
    tree: Tree
    sources: PythonFiles
    names: DisplayPaths
    outcome: Outcome
    warnings: Sequence[BadInput]
    commands: Mapping[str, Sequence[str]]
    touched: Mapping[str, Sequence[str]]

    def contents(self) -> dict[str, bytes]:
        """The new bytes of the files that change."""
        return {
            path: self.sources.source(path).encode(self.outcome.conversions[path].new_text)
            for path in self.outcome.changed()
        }

    def extra(self) -> list[str]:
        """Files of the programs that the listing of the tree left out."""
        return sorted(path for path in self.outcome.conversions if not self.sources.is_known(path))

    def runtime_folders(self) -> list[str]:
        """The folders of scripts that need the runtime, if it is to be copied; those that import what changed, too."""
        done = self.outcome.conversions
        needing = [
            self._import_folder(program)
            for program in self.outcome.programs
            if any(done[path].changed or done[path].converted_before for path in program.files)
        ]
        for script, files in self.touched.items():
            folder = posixpath.dirname(script)
            needing += [folder for path in files if not folder or path.startswith(f"{folder}/")][:1]
        return list(dict.fromkeys(needing)) if self.request.vendored else []

    def _import_folder(self, program: Program) -> str:
        """Where Python looks for modules: beside the script, or beside the package of what a command starts."""
        folder = posixpath.dirname(program.entry)
        while program.functions and posixpath.join(folder, "__init__.py") in self.sources:
            folder = posixpath.dirname(folder)
        return folder


def convert(request: Request) -> int:
    """Converts the directory of a request; returns the exit code. Raises as `dp2ddp.convert.run`."""
    root = Path(request.inputs[0])
    _check_output(root, request)
    names = DisplayPaths(root)
    with page.on_refusal(request), names.in_errors():
        tree = trees.scan(root)
        job = _convert(request, tree, names)
    if job.outcome.is_refused:
        _report(job, None)
        return REFUSED
    progress.doing("writing")
    written = _write(job)
    with blamed(**{"written": "yes"} if written else {}):
        _report(job, written)
    is_open = job.outcome.refused or any(each.notes for each in job.outcome.conversions.values())
    return NOTES_OPEN if request.strict and is_open else 0


def outcome_of(request: Request) -> tuple[DisplayPaths, Outcome]:
    """What would become of the directory of a request, and how to call its files. Raises as `convert`."""
    root = Path(request.inputs[0])
    names = DisplayPaths(root)
    with names.in_errors():
        return names, _convert(request, trees.scan(root), names).outcome


def notebooks_of(name: str) -> list[str]:
    """The notebooks of a directory that have something to convert, as the user would name them."""
    names = DisplayPaths(Path(name))
    with names.in_errors():
        return [names.shown(path) for path in notebooks.wrapping(trees.scan(names.root))]


def _check_output(root: Path, request: Request) -> None:
    if request.output is None:
        return
    if request.output == STANDARD:
        raise BadInput(request.output, what="a directory can't go to standard output", todo="name a folder to write")
    target = Path(request.output)
    if os.path.lexists(target) and not target.is_dir():
        raise BadInput(request.output, what="not a folder")
    real, source = Path(os.path.realpath(target)), Path(os.path.realpath(root))
    if real == source:
        raise BadInput(request.output, what="the output is the input", todo="use --in-place to convert in place")
    if source in real.parents or real in source.parents:
        raise BadInput(
            request.output, what=f"output and input lie inside each other ({root})", todo="write it elsewhere"
        )
    if target.is_dir() and not request.force and any(target.iterdir()):
        raise BadInput(
            request.output, what="exists already, and isn't empty", todo="use --force to replace what is in both"
        )
    check_writable(target / "any" if target.is_dir() else target)


def _convert(request: Request, tree: Tree, names: DisplayPaths) -> _Job:
    progress.doing("looking for scripts")
    sources = tree.sources()
    layout = Layout(sources)
    warnings = list(_linked(tree, sources))
    given = request.entries
    chosen = entry_choice.named(given, tree, sources) if given else entry_choice.guessed(tree, sources, layout)
    warnings += chosen.unread
    outcome = _run(request, chosen.functions, sources, layout)
    warnings += [*_unread(outcome, warnings), *_ignored(outcome, sources), *_shared(outcome)]
    warnings += notebooks.left_alone(tree)
    warnings += entry_choice.unfollowed(chosen, outcome.conversions)
    touched = entries.importing(sources, layout, outcome.changed(), outcome.entries())
    return _Job(request, tree, sources, names, outcome, warnings, chosen.commands, touched)


def _run(request: Request, chosen: Mapping[str, Sequence[str]], sources: PythonFiles, layout: Layout) -> Outcome:
    """Converts the scripts; where they were guessed, those that can't be converted are left as they are."""
    guessed = not request.entries
    followed: list[Program] = []
    refused: list[tuple[Program, BadInput]] = []
    for path in chosen:
        try:
            followed.append(programs.follow(sources, layout, path, chosen[path]))
        except BadInput as error:
            if not guessed:
                raise
            refused.append((Program(path, {}), error))
    progress.doing("converting scripts", len(followed))
    outcome = programs.convert(followed, request.options, lenient=guessed, advance=progress.advance)
    outcome.refused[:0] = refused
    outcome.refused += outcome.blocked
    if outcome.refused and not outcome.programs:
        raise outcome.refused[0][1]
    return outcome


def _linked(tree: Tree, sources: PythonFiles) -> Iterator[BadInput]:
    """Links to Python files elsewhere that would matter."""
    known = {os.path.realpath(tree.root / path) for path in sources}
    for link in tree.links:
        target = tree.root / link
        is_outside = link.endswith(".py") and target.is_file() and os.path.realpath(target) not in known
        if is_outside and wrapcalls.mentions(target.read_bytes()):
            yield BadInput(link, what="a link out of the project, which is not followed", todo="convert its target")


def _unread(outcome: Outcome, known: Sequence[BadInput]) -> list[BadInput]:
    said = {str(error) for error in known}
    errors = {str(error): error for program in outcome.programs for error in program.unread}
    return [error for text, error in errors.items() if text not in said]


def _ignored(outcome: Outcome, sources: PythonFiles) -> Iterator[BadInput]:
    """Files of the scripts that `.gitignore` names."""
    importers = {path: program.entry for program in outcome.programs for path in program.files}
    for path, importer in sorted(importers.items()):
        if sources.is_known(path):
            continue
        yield BadInput(path, what=f"named by .gitignore, but imported by {importer}: converted all the same")


def _shared(outcome: Outcome) -> Iterator[BadInput]:
    """Scripts that were left as they are, but import a file that changed."""
    changed = set(outcome.changed())
    for program, _ in outcome.refused:
        paths = [path for path in program.files if path in changed]
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            what = f"left as it is, but it imports {paths[0]}{more}, which changed"
            yield BadInput(program.entry, what=what, todo="run the original")


def _write(job: _Job) -> str | None:
    """Writes what was asked for; returns the name of the folder that was written."""
    request, root = job.request, job.names.root
    contents = job.contents()
    beside = [root / folder for folder in job.runtime_folders()]
    if request.writes:
        for each in beside:
            vendor.check(each, force=request.force)
    if request.in_place:
        for path in contents:
            check_writable(root / path)
        with vendor.copied(beside):
            placing.overwrite({root / path: data for path, data in contents.items()})
        return str(root)
    if request.output is None:
        if request.form != "text":
            return None  # that form is what standard output is for then
        names = {path: job.names.shown(path) for path in contents}
        diffs.show([(job.sources.source(p), job.outcome.conversions[p]) for p in contents], names)
        return None
    _write_folder(job, contents, Path(request.output))
    return request.output


def _write_folder(job: _Job, contents: dict[str, bytes], target: Path) -> None:
    for folder in job.runtime_folders():
        vendor.check(target / folder, force=job.request.force)
    with placing.staging(target) as staged:
        with job.names.in_errors():
            placing.copy(job.tree, contents, job.extra(), staged)
        vendor.copy_all(staged / folder for folder in job.runtime_folders())
        placing.settle(staged, target, modes_of=job.names.root)


def _report(job: _Job, written: str | None) -> None:
    conversions = job.outcome.conversions
    programs = {program.entry: program.files for program in job.outcome.programs}
    idle = [program.entry for program in job.outcome.idle]

    def done(path: str) -> reporting.File:
        output = None if written is None else str(Path(written, path))
        state = reporting.IDLE if path in idle else reporting.of_program(programs.get(path, ()), conversions)
        return reporting.File(job.names.shown(path), output, conversions[path], state)

    shown = [*programs, *idle]
    others = sorted(path for path, each in conversions.items() if (each.changed or each.notes) and path not in shown)
    renamed = job.names.renamed
    tops = (job.names.root, *([Path(written)] if written is not None else []))
    beside = [top / posixpath.dirname(path) for top in tops for path in ("", *programs)]
    report = reporting.Report(
        [done(path) for path in programs],
        [done(path) for path in [*shown, *others]],
        job.request.vendored,
        job.outcome.is_refused,
        [*map(renamed, job.warnings), *vendor.older(beside)],
        reporting.unreached(conversions, job.names.shown),
        directory=job.request.inputs[0],
        output=written,
        total=len(job.tree.files) + len(job.extra()),
        left_alone=[(job.names.shown(program.entry), renamed(error)) for program, error in job.outcome.refused],
        left_out=job.tree.reasons,
        touched={job.names.shown(path): [job.names.shown(f) for f in files] for path, files in job.touched.items()},
        commands={job.names.shown(path): names for path, names in job.commands.items()},
    )
    page.write(report, job.request)
    reporting.show(report, job.request)
