"""What is converted: scripts that are named one by one, or a directory. Both are read, followed and converted alike."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dp2ddp.convert import notebooks, programs
from dp2ddp.convert.programs import Outcome, Program
from dp2ddp.errors import BadInput
from dp2ddp.notebook.notebook import LineMap, Notebook
from dp2ddp.project import wrapcalls
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.project.text_files import STANDARD, TextFile
from dp2ddp.rules import Options

if TYPE_CHECKING:
    from dp2ddp.project.tree import Tree


NOTES_OPEN = 1
REFUSED = 2


@dataclass(frozen=True)
class Request:
    """The arguments of the command.

    Attributes:
        inputs: scripts, or one directory, or ``-``.
        options: how to convert.
        output: where to; ``-`` for standard output, None for a diff or `in_place`.
        in_place: write over the inputs.
        entries: the scripts of a directory that are started; found by themselves if there are none.
        force: overwrite what is there.
        vendored: copy the runtime beside every script that is started.
        strict: open notes make the exit code `NOTES_OPEN`.
        form: the form of what is found (one of `formats.FORMATS`); other than text, it goes to standard output.
        verbose: the summary names every line that changed.
        html: where to write a page to look at, None for none.
    """

    inputs: Sequence[str]
    options: Options
    output: str | None = None
    in_place: bool = False
    entries: Sequence[str] = ()
    force: bool = False
    vendored: bool = False
    strict: bool = False
    form: str = "text"
    verbose: bool = False
    html: str | None = None

    @property
    def writes(self) -> bool:
        """Whether files are written."""
        return self.in_place or self.output not in (None, STANDARD)


def folders(inputs: Sequence[str]) -> list[str]:
    """Those of the inputs that are directories.

    Raises:
        BadInput: one has no name, as an unset variable of the shell has none.
    """
    if "" in inputs:
        raise BadInput("INPUT", what="an empty name", todo="name a script, or a folder")
    return [name for name in inputs if Path(name).is_dir()]


@dataclass(frozen=True)
class DisplayPaths:
    """What to call paths relative to `root`.

    Attributes:
        root: the project's folder.
        given: the names of files that the user named himself.
        places: of notebooks, where the lines of their scripts stand.
    """

    root: Path
    given: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, LineMap] = field(default_factory=dict)

    def shown(self, path: str) -> str:
        """What to call the file at `path`; as absolute or as relative as the user called others.

        What lies in the current folder is called from there in any case.
        """
        if path in self.given:
            return _from_here(self.given[path])
        place = self.root / path
        if not place.is_absolute() or all(map(os.path.isabs, self.given.values())):
            return _from_here(str(place))
        return os.path.relpath(place)

    def renamed(self, error: BadInput) -> BadInput:
        """The error about a file at a path, with the name that the user knows it by."""
        shown = self.shown(error.file)
        return self.places[error.file].renamed(error, shown) if error.file in self.places else error.renamed(shown)

    @contextlib.contextmanager
    def in_errors(self) -> Iterator[None]:
        """Renames the file in errors that come out of the block, where it is one of the project's."""
        try:
            yield
        except BadInput as error:
            if os.path.isabs(error.file) or not os.path.lexists(self.root / error.file):
                raise
            raise self.renamed(error) from None


def _from_here(name: str) -> str:
    here = os.path.join(os.getcwd(), "")
    return os.path.relpath(name) if os.path.isabs(name) and name.startswith(here) else name


@dataclass
class Job:
    """What was read, and what became of it. All paths are relative to the project's folder.

    Attributes:
        names: what to call them.
        sources: the project's Python files; a notebook is the script in it.
        given: the scripts that were named one by one; none for a directory.
        tree: the directory; None for scripts.
        outcome: what became of the programs.
        warnings: what else the user should know of files.
    """

    request: Request
    names: DisplayPaths
    sources: PythonFiles
    given: Mapping[str, TextFile] = field(default_factory=dict)
    tree: Tree | None = None
    outcome: Outcome = field(default_factory=Outcome)
    warnings: list[BadInput] = field(default_factory=list)

    def new_bytes(self, path: str) -> bytes:
        """What is written for a file."""
        return self.sources.source(path).encode(self.outcome.conversions[path].new_text)

    def changed(self) -> list[str]:
        """The files that were given, and all others that must change."""
        return [*self.given, *(path for path in self.outcome.changed() if path not in self.given)]

    def extra(self) -> list[str]:
        """Files of the programs that the listing of the directory left out."""
        return sorted(path for path in self.outcome.conversions if not self.sources.is_known(path))

    def place(self, path: str) -> Path:
        """Where a file lies, as the user would name it."""
        return Path(self.names.shown(path))

    def runtime_folders(self) -> list[str]:
        """The folders of scripts that need the runtime, if it is to be copied."""
        done = self.outcome.conversions
        needing = [
            posixpath.dirname(program.entry)
            for program in self.outcome.programs
            if any(done[path].changed or done[path].converted_before for path in program.files)
        ]
        return needing if self.request.vendored else []


def given(request: Request) -> list[TextFile]:
    """The scripts of a request, read; none for a directory.

    Raises:
        BadInput: one can't be read, or they don't go together.
    """
    if Path(request.inputs[0]).is_dir():
        return []
    if STANDARD in request.inputs and len(request.inputs) > 1:
        raise BadInput(STANDARD, what="standard input among several inputs", todo="give it alone")
    if request.entries:
        raise BadInput("--entry", what="the input is no directory", todo="give the scripts themselves as inputs")
    return [notebooks.read(name) for name in request.inputs]


def converted(request: Request, scripts: Sequence[TextFile], *, lenient: bool = False) -> Job:
    """Converts what a request names; writes nothing.

    Args:
        scripts: as `given` has them.
        lenient: scripts that can't be converted are left in the outcome, and those that have nothing to do with
            `DataParallel` need no conversion, whatever else they are.

    Raises:
        BadInput: something the user has to change.
        EditError: a mistake in dp2ddp.
    """
    return _of_scripts(request, scripts, lenient=lenient) if scripts else _of_directory(request)


def notebooks_of(name: str) -> list[str]:
    """The notebooks of a directory that have something to convert, as the user would name them."""
    from dp2ddp.project import tree as trees

    names = DisplayPaths(Path(name))
    with names.in_errors():
        return [names.shown(path) for path in notebooks.wrapping(trees.scan(names.root))]


def _of_scripts(request: Request, scripts: Sequence[TextFile], *, lenient: bool) -> Job:
    piped = scripts[0].path is None
    paths = [Path(os.path.abspath(source.name)) for source in scripts]
    root = Path() if piped else programs.root_of(paths)
    names = [scripts[0].name] if piped else [path.relative_to(root).as_posix() for path in paths]
    by_path = dict(zip(names, scripts))
    sources = PythonFiles(root, late=lambda path: not piped)
    for path, source in by_path.items():
        sources.give(path, source)
    places = {path: source.places for path, source in by_path.items() if isinstance(source, Notebook)}
    shown = DisplayPaths(root, {path: source.name for path, source in by_path.items()}, places)
    job = Job(request, shown, sources, by_path)
    with job.names.in_errors():
        _convert(job, Layout(sources), names, lenient=lenient)
    done = job.outcome.conversions
    for path in done.keys() & by_path:
        done[path] = notebooks.with_places(done[path], by_path[path])
    return job


def _of_directory(request: Request) -> Job:
    from dp2ddp.project import entries
    from dp2ddp.project import tree as trees

    root = Path(request.inputs[0])
    names = DisplayPaths(root)
    with names.in_errors():
        tree = trees.scan(root)
        sources = tree.sources()
        layout = Layout(sources)
        job = Job(request, names, sources, tree=tree, warnings=list(_linked(tree, sources)))
        chosen = entries.choose(request.entries, sources, layout)
        _convert(job, layout, chosen.entries, lenient=not request.entries)
        outcome = job.outcome
        done = outcome.conversions.values()
        if outcome.refused and not any(each.changed or each.converted_before for each in done):
            raise _all_of(outcome.refused)
        known = {program.entry for program, _ in outcome.refused}
        outcome.refused += [(Program(each.file, {}), each) for each in chosen.unread if each.file not in known]
        said = {str(each) for _, each in outcome.refused}
        job.warnings = [each for each in job.warnings if str(each) not in said]  # an import of such a file
        job.warnings += [*_ignored(outcome, sources), *_shared(outcome, names)]
        what, todo = "a notebook, which is left as it is", "convert it by its own name"
        job.warnings += [BadInput(path, what=what, todo=todo) for path in notebooks.wrapping(tree)]
        left_alone = {path for program, _ in outcome.refused for path in (program.entry, *program.files)}
        job.warnings += chosen.left({*outcome.conversions, *left_alone})
    return job


def _convert(job: Job, layout: Layout, chosen: Sequence[str], *, lenient: bool) -> None:
    """Converts scripts, each with what it imports."""
    followed: list[Program] = []
    refused: list[tuple[Program, BadInput]] = []
    for path in chosen:
        is_foreign = lenient and path in job.given  # until it is known to have to do with `DataParallel`
        try:
            program = programs.follow(job.sources, layout, path)
        except BadInput as error:
            if not lenient:
                raise
            if not is_foreign or wrapcalls.mentions(job.sources.data(path)):
                refused.append((Program(path, {}), error))
            continue
        if not is_foreign or any(name in text for text in program.files.values() for name in wrapcalls.CALLED):
            followed.append(program)
    job.outcome = programs.convert(followed, job.request.options, lenient=lenient)
    job.outcome.refused = sorted([*refused, *job.outcome.refused], key=lambda each: each[0].entry)
    said = set(map(str, job.warnings))
    unread = {str(error): error for program in job.outcome.programs for error in program.unread}
    job.warnings += [error for text, error in unread.items() if text not in said]


def _all_of(refused: Sequence[tuple[Program, BadInput]]) -> BadInput:
    """Why none of several scripts is converted: the first one's reasons, and those of the others."""
    alike: dict[str, list[str]] = {}
    for place, _, reason in dict.fromkeys(str(error).partition(": ") for _, error in refused):
        alike.setdefault(reason, []).append(place)
    error = refused[0][1]
    told: list[str] = []
    for reason, (place, *others) in alike.items():
        more = f" (and in the same way for {', '.join(others[:4])}{', ...' * (len(others) > 4)})" * bool(others)
        told.append(f"{f'{place}: {reason}' if told else error.todo}{more}")
    todo = "; and ".join(told)
    return BadInput(error.file, line=error.line, column=error.column, what=error.what, todo=todo, rule=error.rule)


def _linked(tree: Tree, sources: PythonFiles) -> Iterator[BadInput]:
    """Links to Python files elsewhere that would matter."""
    known = {os.path.realpath(tree.root / path) for path in sources}
    for link in tree.links:
        target = tree.root / link
        is_outside = link.endswith(".py") and target.is_file() and os.path.realpath(target) not in known
        if is_outside and wrapcalls.mentions(target.read_bytes()):
            yield BadInput(link, what="a link out of the project, which is not followed", todo="convert its target")


def _ignored(outcome: Outcome, sources: PythonFiles) -> Iterator[BadInput]:
    """Files of the scripts that git ignores."""
    importers = {path: program.entry for program in outcome.programs for path in program.files}
    for path, importer in sorted(importers.items()):
        if not sources.is_known(path):
            yield BadInput(path, what=f"ignored by git, but imported by {importer}: converted all the same")


def _shared(outcome: Outcome, names: DisplayPaths) -> Iterator[BadInput]:
    """Scripts that were left as they are, but import a file that changed."""
    changed = set(outcome.changed())
    for program, _ in outcome.refused:
        paths = [names.shown(path) for path in program.files if path in changed]
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            what = f"left as it is, but it imports {paths[0]}{more}, which changed"
            yield BadInput(program.entry, what=what, todo="run it with the originals")
