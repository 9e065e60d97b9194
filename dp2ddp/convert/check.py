"""`dp2ddp check`: what a conversion would change, and what needs a person; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dp2ddp.convert import pipeline, scripts
from dp2ddp.convert.display_paths import DisplayPaths
from dp2ddp.convert.findings import Found, found_in, in_order, refusal
from dp2ddp.convert.programs import Outcome
from dp2ddp.convert.request import Request, folders
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options


def check(inputs: Sequence[str], options: Options, entries: Sequence[str] = ()) -> list[Found]:
    """What is found in scripts and directories, in the order of the lines; each line and rule once.

    Args:
        inputs: scripts and directories.
        options: how they would be converted.
        entries: the scripts of a directory that are started, as for `convert`.

    Raises:
        BadInput: an input can't be read.
    """
    pipeline.check_rules(options)
    directories = folders(inputs)
    if entries and (len(directories) != 1 or len(inputs) > 1):
        raise BadInput("--entry", what="the input is no single directory", todo="give one, or the scripts themselves")
    outcomes, refused = _outcomes(inputs, directories, options, entries)
    return in_order([*refused, *(each for names, outcome in outcomes for each in _found(names, outcome))])


def _outcomes(
    inputs: Sequence[str], directories: Sequence[str], options: Options, entries: Sequence[str]
) -> tuple[list[tuple[DisplayPaths, Outcome]], list[Found]]:
    """What becomes of the inputs, and the notebooks of directories that can't be read."""
    files = [name for name in inputs if name not in directories]
    outcomes, refused = [], []
    if files:
        outcomes.append(scripts.outcome_of(Request(files, options)))
    if directories:
        from dp2ddp.convert import folder  # with what a single script doesn't need

        outcomes += [folder.outcome_of(Request([name], options, entries=entries)) for name in directories]
    for notebook in (notebook for name in directories for notebook in folder.notebooks_of(name)):
        try:
            outcomes.append(scripts.outcome_of(Request([notebook], options)))
        except BadInput as error:
            refused.append(refusal(notebook, error))
    return outcomes, refused


def _found(names: DisplayPaths, outcome: Outcome) -> Iterator[Found]:
    for path, conversion in outcome.conversions.items():
        yield from found_in(conversion, names.shown(path))
    for program, error in outcome.refused:
        yield refusal(names.shown(program.entry), names.renamed(error))
