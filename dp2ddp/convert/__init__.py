"""`dp2ddp convert` and `dp2ddp check`: scripts or a whole project, converted, or looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dp2ddp.convert import job as jobs
from dp2ddp.convert import page, reporting, writing
from dp2ddp.convert.findings import Found, in_order, refusal
from dp2ddp.convert.job import NOTES_OPEN, REFUSED, Request, folders
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options

__all__ = ["NOTES_OPEN", "Request", "check", "run"]


def run(request: Request) -> int:
    """Carries out a request; returns the exit code.

    Raises:
        BadInput: something the user has to change; nothing is written.
        EditError: a mistake in dp2ddp; nothing is written.
    """
    directories = folders(request.inputs)
    if directories and len(request.inputs) > 1:
        raise BadInput(directories[0], what="a directory among several inputs", todo="give one directory, or scripts")
    page.check(request)
    given = jobs.given(request)
    writing.check(request, given)
    job = jobs.converted(request, given)
    outputs: dict[str, str] = {}
    if not job.outcome.is_refused:
        outputs = writing.write(job)
    report = reporting.of_job(job, outputs)
    page.write(report)
    reporting.show(report)
    if job.outcome.is_refused:
        return REFUSED
    is_open = job.outcome.refused or any(each.notes for each in job.outcome.conversions.values())
    return NOTES_OPEN if request.strict and is_open else 0


def check(inputs: Sequence[str], options: Options, entries: Sequence[str] = ()) -> list[Found]:
    """What a conversion would change in scripts and directories, and what needs a person; nothing is written.

    Args:
        inputs: scripts and directories.
        options: how they would be converted.
        entries: the scripts of a directory that are started, as for `convert`.

    Returns:
        In the order of the lines; each line and rule once.

    Raises:
        BadInput: an input can't be read.
    """
    directories = folders(inputs)
    if entries and (len(directories) != 1 or len(inputs) > 1):
        raise BadInput("--entry", what="the input is no single directory", todo="give one, or the scripts themselves")

    def looked_at(names: Sequence[str], entries: Sequence[str] = ()) -> Iterator[Found]:
        request = Request(names, options, entries=entries)
        yield from reporting.of_job(jobs.converted(request, jobs.given(request), lenient=True), {}).found

    files = [name for name in inputs if name not in directories]
    found = list(looked_at(files)) if files else []
    for name in directories:
        found += looked_at([name], entries)
    for notebook in (notebook for name in directories for notebook in jobs.notebooks_of(name)):
        try:
            found += looked_at([notebook])
        except BadInput as error:
            found.append(refusal(notebook, error))
    return in_order(found)
