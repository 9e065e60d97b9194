"""Where a conversion goes: over its inputs, to a file, to a folder, or to standard output; all of it or nothing."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path

from dp2ddp.command import terminal
from dp2ddp.convert import diffs, running
from dp2ddp.convert.job import Job, Request
from dp2ddp.errors import BadInput
from dp2ddp.notebook.notebook import SUFFIX, is_notebook
from dp2ddp.project import placing, text_files, vendor
from dp2ddp.project.text_files import STANDARD, TextFile


def check(request: Request, given: Sequence[TextFile]) -> None:
    """Checks the output of a request, before any work is done.

    Args:
        given: the scripts that were named one by one; none for a directory.

    Raises:
        BadInput: it has no place for what is converted, or can't be written.
    """
    output = request.output
    asked = list(request.inputs) if request.in_place else [output or ""]
    for name in filter(is_notebook, asked):
        raise BadInput(name, what="a notebook becomes a script", todo="name that: -o train_ddp.py; a cell can start it")
    if output is None or (output == STANDARD and given):
        return
    if output == STANDARD:
        raise BadInput(output, what="a directory can't go to standard output", todo="name a folder to write")
    if not _is_folder(request):
        if len(given) > 1:
            todo = "write its name with a / at the end"
            raise BadInput(output, what="several files need a folder to go to", todo=todo)
        text_files.check_new(Path(output), given[0].path, force=request.force)
        text_files.check_writable(Path(output))
        return
    if given and given[0].path is None:
        raise BadInput(output, what="a folder, and standard input has no name there", todo="name a file")
    target = Path(output)
    if os.path.lexists(target) and not target.is_dir():
        raise BadInput(str(target) if given else output, what="not a folder")
    if not given:
        _check_apart(target, request)
    text_files.check_writable(target / "any" if target.is_dir() else target)


def _is_folder(request: Request) -> bool:
    output = request.output or ""
    return output.endswith(("/", os.sep)) or os.path.isdir(output) or os.path.isdir(request.inputs[0])


def _check_apart(target: Path, request: Request) -> None:
    """A copy of a directory lies outside of it, and where nothing else lies."""
    output, root = str(request.output), request.inputs[0]
    real, source = Path(os.path.realpath(target)), Path(os.path.realpath(root))
    if real == source:
        raise BadInput(output, what="the output is the input", todo="use --in-place to convert in place")
    if source in real.parents or real in source.parents:
        inside = f"output and input lie inside each other ({Path(root)})"
        raise BadInput(output, what=inside, todo="write it elsewhere")
    if target.is_dir() and not request.force and any(target.iterdir()):
        todo = "use --force to replace what is in both"
        raise BadInput(output, what="exists already, and isn't empty", todo=todo)


def write(job: Job) -> dict[str, str]:
    """Writes what was asked for; returns the names of the files that were written, by path.

    Raises:
        BadInput: it can't be written; nothing was.
    """
    request = job.request
    if request.in_place:
        return _write_in_place(job)
    if request.output is None:
        if request.form == "text":  # any other form is what standard output is for then
            done = job.outcome.conversions
            diffs.show((job.names.shown(path), job.sources.source(path), done[path]) for path in job.changed())
        return {}
    if request.output != STANDARD and _is_folder(request):
        return _write_folder(job, Path(request.output))
    return _write_file(job, request.output)


def _write_in_place(job: Job) -> dict[str, str]:
    contents = {job.place(path): job.new_bytes(path) for path in job.outcome.changed()}
    beside = _runtime_folders(job, job.place)
    for path in contents:
        text_files.check_writable(path)
    for folder in beside:
        vendor.copy(folder)
    placing.write(contents)
    written = job.outcome.conversions if job.tree is not None else job.changed()
    return {path: str(job.place(path)) for path in written}


def _write_file(job: Job, output: str) -> dict[str, str]:
    (path,) = job.given
    others = [job.names.shown(each) for each in job.changed() if each != path]
    if others:  # one file of several would be half a conversion
        count = f"{len(others)} other file{'s' if len(others) > 1 else ''}"
        what = f"{count} must change, too, and {output} is one file: {', '.join(others)}"
        raise BadInput(job.names.shown(path), what=what, todo="write them all to a folder (-o FOLDER/), or --in-place")
    if output == STANDARD:
        terminal.write_result(job.new_bytes(path))
        return {}
    for folder in _runtime_folders(job, lambda _: Path(output).parent):
        vendor.copy(folder)
    placing.write({Path(output): job.new_bytes(path)}, mode_of=job.given[path].path)
    return {path: output}


def _write_folder(job: Job, target: Path) -> dict[str, str]:
    """Writes a copy of the directory; of scripts and what they import, in the same places to each other."""
    paths = list(job.outcome.conversions)
    top = "" if job.tree is not None else _top(job, paths)
    names = {path: f"{path[: -len(SUFFIX)]}.py" if is_notebook(path) else path for path in paths}
    outputs = {path: target / posixpath.relpath(name, top or ".") for path, name in names.items()}
    for path, output in outputs.items() if job.tree is None else ():
        if list(outputs.values()).count(output) > 1:
            what = "a notebook and a script would both go there"
            raise BadInput(str(output), what=what, todo="convert them one by one")
        text_files.check_new(output, job.sources.root / path, force=job.request.force)
    beside = _runtime_folders(job, lambda folder: target / posixpath.relpath(folder or ".", top or "."))
    with placing.staging(target) as staged:
        if job.tree is not None:
            with job.names.in_errors():
                contents = {path: job.new_bytes(path) for path in job.outcome.changed()}
                placing.copy(job.tree, contents, job.extra(), staged)
        for path, output in outputs.items() if job.tree is None else ():
            fresh = staged / output.relative_to(target)
            fresh.parent.mkdir(parents=True, exist_ok=True)
            placing.write({fresh: job.new_bytes(path)}, mode_of=job.sources.root / path)
        for folder in beside:
            vendor.copy(staged / folder.relative_to(target))
    return {path: str(output) for path, output in outputs.items()}


def _top(job: Job, paths: Sequence[str]) -> str:
    """The folder that all files are in, and from which they import each other."""
    folders = []
    for path in paths:
        above = running.folders_above(job.names.shown(path), job.sources[path], map(job.names.shown, paths))
        folders.append("/".join(posixpath.dirname(path).split("/")[: -above or None]))
    return posixpath.commonpath(folders)


def _runtime_folders(job: Job, place: Callable[[str], Path]) -> list[Path]:
    """Where the runtime goes; `place`: where folders go."""
    folders = list(dict.fromkeys(place(folder) for folder in job.runtime_folders()))
    for folder in folders:
        vendor.check(folder, force=job.request.force)
    return folders
