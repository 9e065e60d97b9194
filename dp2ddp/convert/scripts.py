"""Converts scripts that are named one by one; what they import is followed."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dp2ddp.command import progress, terminal
from dp2ddp.convert import diffs, notebooks, page, programs, reporting
from dp2ddp.convert.display_paths import DisplayPaths
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.convert.programs import Outcome, Program
from dp2ddp.convert.request import NOTES_OPEN, REFUSED, Request
from dp2ddp.errors import BadInput, blamed
from dp2ddp.notebook import document
from dp2ddp.notebook.notebook import Notebook
from dp2ddp.project import placing, text_files, vendor, wrapcalls
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.project.text_files import STANDARD, TextFile
from dp2ddp.rules import Options


@dataclass(frozen=True)
class _Job:
    """Scripts as read, and what became of them; by paths relative to the project's root."""

    request: Request
    given: Mapping[str, TextFile]
    sources: PythonFiles
    names: DisplayPaths
    outcome: Outcome

    def source(self, path: str) -> TextFile:
        return self.given.get(path) or self.sources.source(path)

    def new_bytes(self, path: str) -> bytes:
        conversion = self.outcome.conversions[path]
        return notebooks.new_bytes(self.source(path), conversion, alone=self.request.alone)

    def others(self) -> list[str]:
        """Files that must change besides those that were given."""
        return [path for path in self.outcome.changed() if path not in self.given]

    def uses_runtime(self) -> bool:
        conversions = self.outcome.conversions.values()
        return any(each.changed or each.converted_before for each in conversions)


def convert(request: Request) -> int:
    """Converts the scripts of a request; returns the exit code. Raises as `dp2ddp.convert.run`."""
    if STANDARD in request.inputs and len(request.inputs) > 1:
        raise BadInput(STANDARD, what="standard input among several inputs", todo="give it alone")
    if request.entries:
        raise BadInput("--entry", what="the input is no directory", todo="give the scripts themselves as inputs")
    given = [notebooks.read(name, alone=request.alone) for name in request.inputs]
    target = _folder(request, given)
    if target is not None:
        _check_folder(target, request)
    elif request.output is not None:
        notebooks.check_kinds(request.output, given[0].name)
        text_files.check_output(request.output, given[0], force=request.force)
    _check_in_place(given, request)
    beside = _runtime_folders(request, given) if target is None else []
    for each in beside:
        vendor.check(each, force=request.force)
    with page.on_refusal(request):
        job = _convert(request, given)
    if job.outcome.is_refused:
        _report(job, {})
        return REFUSED
    if target is None:
        _check_others(job)
    progress.doing("writing")
    outputs = _write(job, beside) if target is None else _write_folder(job, target)
    with blamed(**{"written": "yes"} if outputs else {}):
        _report(job, outputs)
    is_open = any(each.notes for each in job.outcome.conversions.values())
    return NOTES_OPEN if request.strict and is_open else 0


def outcome_of(request: Request) -> tuple[DisplayPaths, Outcome]:
    """What would become of the scripts of a request, and how to call their files.

    Scripts that can't be converted are in the outcome. Those that have nothing to do with `DataParallel` need no
    conversion, whatever else they are: whoever has a repository checked gives all of its files.

    Raises:
        BadInput: a script can't be read.
    """
    job = _convert(request, [notebooks.read(name) for name in request.inputs], lenient=True)
    return job.names, job.outcome


def _folder(request: Request, given: Sequence[TextFile]) -> Path | None:
    """The folder that the output is, None where it is a file or nothing.

    Raises:
        BadInput: several files, or one without a name, for which that output has no place.
    """
    if request.output in (None, STANDARD):
        return None
    assert request.output is not None
    if request.output.endswith(("/", os.sep)) or os.path.isdir(request.output):
        if given[0].path is None:
            raise BadInput(request.output, what="a folder, and standard input has no name there", todo="name a file")
        return Path(request.output)
    if len(given) > 1:
        raise BadInput(
            request.output, what="several files need a folder to go to", todo="write its name with a / at the end"
        )
    return None


def _check_others(job: _Job) -> None:
    """One file of several that have to change would be half a conversion.

    Raises:
        BadInput: the output is one file, and others must change, too.
    """
    output, others = job.request.output, [job.names.shown(path) for path in job.others()]
    if output is None or not others:
        return
    (given,) = job.given
    count = f"{len(others)} other file{'s' if len(others) > 1 else ''}"
    raise BadInput(
        job.names.shown(given),
        what=f"{count} must change, too, and {output} is one file: {', '.join(others)}",
        todo="write them all to a folder (-o FOLDER/), or --in-place",
    )


def _check_folder(folder: Path, request: Request) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise BadInput(str(folder), what="not a folder")
    text_files.check_writable(folder / "any" if folder.is_dir() else folder)


def _check_in_place(given: Sequence[TextFile], request: Request) -> None:
    for source in given:
        if request.in_place and source.path is not None:
            text_files.check_writable(source.path)


def _runtime_folders(request: Request, given: Sequence[TextFile]) -> list[Path]:
    """Where the runtime is to lie, beside outputs that are files."""
    if not request.vendored:
        return []
    targets = [source.path for source in given] if request.in_place else [Path(request.output or "")]
    return list(dict.fromkeys(target.parent for target in targets if target is not None))


def _convert(request: Request, given: Sequence[TextFile], *, lenient: bool = False) -> _Job:
    if given[0].path is None:
        conversions = {given[0].name: convert_source(given[0].text, given[0].name, request.options)}
        sources = PythonFiles(Path(), late=lambda path: False)
        names = DisplayPaths(Path(), {given[0].name: given[0].name})
        return _Job(request, {given[0].name: given[0]}, sources, names, Outcome([], conversions))
    paths = [Path(os.path.abspath(source.name)) for source in given]
    root = programs.root_of(paths)
    by_path = {path.relative_to(root).as_posix(): source for path, source in zip(paths, given)}
    sources = PythonFiles(root, late=lambda path: True)
    for path, source in by_path.items():
        sources.give(path, source)
    places = {path: source.places for path, source in by_path.items() if isinstance(source, Notebook)}
    names = DisplayPaths(root, {path: source.name for path, source in by_path.items()}, places)
    layout = Layout(sources, disk=sources)
    with names.in_errors():
        outcome = (_found if lenient else _asked)(sources, layout, list(by_path), request.options)
    for path, source in by_path.items():
        if path in outcome.conversions:
            outcome.conversions[path] = notebooks.with_places(outcome.conversions[path], source, alone=request.alone)
    return _Job(request, by_path, sources, names, outcome)


def _asked(sources: PythonFiles, layout: Layout, paths: Sequence[str], options: Options) -> Outcome:
    followed = [programs.follow(sources, layout, path) for path in paths]
    return programs.convert(followed, options, lenient=False)


def _found(sources: PythonFiles, layout: Layout, paths: Sequence[str], options: Options) -> Outcome:
    """As `_asked`, of those scripts alone that have to do with `DataParallel`."""
    followed: list[Program] = []
    refused: list[tuple[Program, BadInput]] = []
    for path in paths:
        try:
            program = programs.follow(sources, layout, path)
        except BadInput as error:
            if wrapcalls.mentions(sources.data(path)):
                refused.append((Program(path, {}), error))
            continue
        if program.names_data_parallel:
            followed.append(program)
    outcome = programs.convert(followed, options, lenient=True)
    outcome.refused[:0] = refused
    outcome.refused += outcome.blocked
    return outcome


def _write(job: _Job, beside: Sequence[Path]) -> dict[str, str]:
    """Writes to the files themselves, to one file, or to standard output; returns the files written, by path."""
    request = job.request
    if request.in_place:
        return _write_in_place(job, beside)
    if request.output is None:
        _show_diffs(job)
        return {}
    (path,) = job.given
    data = job.new_bytes(path)
    if request.output == STANDARD:
        terminal.write_result(data)
        return {}
    if job.uses_runtime():
        vendor.copy_all(beside)
    text_files.write(Path(request.output), data, mode_of=job.source(path).path)
    return {path: request.output}


def _show_diffs(job: _Job) -> None:
    if job.request.form != "text":
        return  # that form is what standard output is for then
    paths = [*job.given, *job.others()]
    names = {job.source(path).name: job.names.shown(path) for path in paths}
    diffs.show([(job.source(path), job.outcome.conversions[path]) for path in paths], names)


def _write_in_place(job: _Job, beside: Sequence[Path]) -> dict[str, str]:
    contents = {job.sources.root / path: job.new_bytes(path) for path in job.outcome.changed()}
    for path in contents:
        text_files.check_writable(path)
    with vendor.copied(beside if job.uses_runtime() else []):
        placing.overwrite(contents)
    return {path: job.names.shown(path) for path in [*job.given, *job.others()]}


def _write_folder(job: _Job, target: Path) -> dict[str, str]:
    """Writes what was given and what it imports from its project, in the same places to each other: it can be run."""
    imported = sorted(path for path in job.outcome.conversions if path not in job.given)
    paths = [*job.given, *imported]
    top = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    outputs = {path: target / posixpath.relpath(_script(path), top or ".") for path in paths}
    for path, output in outputs.items():
        if list(outputs.values()).count(output) > 1:
            raise BadInput(
                str(output), what="a notebook and a script would both go there", todo="convert them one by one"
            )
        text_files.check_new(output, job.sources.root / path, force=job.request.force)
    folders = [output.parent for path, output in outputs.items() if path in job.given]
    folders = list(dict.fromkeys(folders)) if job.request.vendored and job.uses_runtime() else []
    for folder in folders:
        vendor.check(folder, force=job.request.force)
    with placing.staging(target) as staged:
        for path, output in outputs.items():
            fresh = staged / output.relative_to(target)
            fresh.parent.mkdir(parents=True, exist_ok=True)
            placing.write_new(fresh, job.new_bytes(path), mode_of=job.sources.root / path)
        vendor.copy_all(staged / folder.relative_to(target) for folder in folders)
        placing.settle(staged, target)
    return {path: str(output) for path, output in outputs.items()}


def _script(path: str) -> str:
    """The name of what a notebook becomes; others keep theirs."""
    return f"{path[: -len(document.SUFFIX)]}.py" if document.is_named(path) else path


def _report(job: _Job, outputs: Mapping[str, str]) -> None:
    conversions = job.outcome.conversions
    programs = {program.entry: program.files for program in job.outcome.programs}
    idle = [program.entry for program in job.outcome.idle]

    def done(path: str) -> reporting.File:
        state = reporting.IDLE if path in idle else reporting.of_program(programs.get(path, ()), conversions)
        return reporting.File(job.names.shown(path), outputs.get(path), conversions[path], state)

    noted = sorted(path for path, each in conversions.items() if each.notes and path not in job.given)
    unread = {str(error): error for program in job.outcome.programs for error in program.unread}
    started = [done(path) for path in job.given]
    files = [*map(Path, outputs.values()), *(source.path for source in job.given.values() if source.path is not None)]
    report = reporting.Report(
        started,
        [*started, *(done(path) for path in sorted({*job.others(), *noted}))],
        job.request.vendored,
        job.outcome.is_refused,
        [*(job.names.renamed(error) for error in unread.values()), *vendor.older(each.parent for each in files)],
        reporting.unreached(conversions, job.names.shown),
    )
    page.write(report, job.request)
    reporting.show(report, job.request)
