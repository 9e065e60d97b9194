"""Scripts from text to text: parse, plan, rewrite."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dp2ddp.analysis import own_ddp
from dp2ddp.convert.plan import Plan, plan
from dp2ddp.errors import BadInput, EditError, NotRewritable
from dp2ddp.notebook.notebook import LineMap
from dp2ddp.project import wrapcalls
from dp2ddp.project.modules import Layout
from dp2ddp.rewrite.apply import apply
from dp2ddp.rewrite.edits import Edit, Note, at
from dp2ddp.rules import Options
from dp2ddp.rules.unsupported import NOTHING
from dp2ddp.source import syntax
from dp2ddp.source.program import File, ParsedProgram, link
from dp2ddp.source.spans import Span, moved

# What a file has to speak of to have to do with training: models, data, losses, devices, files, randomness, time,
# output, arguments. One that says nothing of the kind (constants, formulas, parsing of strings) needs no analysis.
_RELEVANT = re.compile(
    "torch|model|net|layer|forward|backward|grad|step|optim|loss|criterion|metric|meter|batch|data|load|sampl|train"
    "|eval|test|valid|epoch|iter|cuda|gpu|devic|parallel|rank|rand|seed|shuffl|numpy|np|time|open|read|write|save|dump"
    "|path|file|dir|glob|shutil|copy|remove|rename|exist|log|print|exit|environ|arg|config|cfg|process|thread|class ",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Conversion:
    """What became of a script.

    Attributes:
        new_text: the converted source; the original where nothing changed.
        edits: every change, in the order of the source.
        notes: what a person has to look at, in the order of the source.
        changed: whether `new_text` differs from the original.
        converted_before: the script calls the runtime already, and was left as it is.
        refused: something in its program can't be converted, so nothing was; the notes on that file say what.
        places: of a script that was made from a notebook, where its lines stand there.
        old_text: the original source.
    """

    new_text: str
    edits: Sequence[Edit] = ()
    notes: Sequence[Note] = ()
    changed: bool = False
    converted_before: bool = False
    refused: bool = False
    places: LineMap | None = None
    old_text: str = ""


def convert_source(text: str, filename: str, options: Options) -> Conversion:
    """Converts the source `text`, which has no byte order mark, as a script by itself.

    Args:
        filename: for messages only.

    Raises:
        BadInput: no Python, or a program of which a part was converted before.
        EditError: a mistake in dp2ddp.
    """
    return convert_files({filename: text}, [filename], options)[filename]


def convert_files(files: Mapping[str, str], entries: Sequence[str], options: Options) -> dict[str, Conversion]:
    """Converts scripts of one project together with what they import from it.

    Args:
        files: the texts of the project's Python files, by their path relative to its root, with `/` between folders.
        entries: those that are started.

    Returns:
        What became of each entry and each file that it imports, directly or not; by path.

    Raises:
        BadInput, EditError: as for `convert_source`; names the file.
    """
    source, texts, read = linked(files, entries)
    try:
        done = _conversions(source, read, options)
    except RecursionError:
        todo = "break its longest expression into several statements"
        raise BadInput(next(iter(entries)), what="nested too deeply for dp2ddp", todo=todo) from None
    return {name: replace(done.get(name) or Conversion(text), old_text=text) for name, text in texts.items()}


def linked(files: Mapping[str, str], entries: Sequence[str]) -> tuple[ParsedProgram, dict[str, str], dict[str, str]]:
    """Scripts of one project and what they import from it, as one program; arguments as `convert_files` takes them.

    Returns:
        The program; the texts of all its files; the texts of those that it was parsed from, as they matter.
    """
    layout = Layout(files)
    programs = {entry: layout.reachable(entry) for entry in entries}
    reached = dict.fromkeys(name for program in programs.values() for name in program)
    # Where a file is imported by several scripts, its own imports are looked up as the first of them does.
    started_by = {name: entry for entry in reversed(entries) for name in programs[entry]}
    started_by.update((entry, entry) for entry in entries)

    def resolve(importer: str, module: str, level: int) -> str | None:
        return layout.resolve(importer, started_by[importer], module, level)

    texts = {name: files[name] for name in reached}
    # (By a package's own file names come from one that matters.)
    kept = {name for name in texts if name in entries or name.endswith("__init__.py")}
    read = {name: text for name, text in texts.items() if name in kept or _RELEVANT.search(text)}
    return link(read, entries, resolve, reached=programs), texts, read


def _conversions(source: ParsedProgram, texts: Mapping[str, str], options: Options) -> dict[str, Conversion]:
    converted = {file.name for file in source.files if own_ddp.is_converted(file)}
    for file in source.files if converted else ():
        left = [] if file.name in converted else wrapcalls.places(file.tree)
        if left:
            others = ", ".join(sorted(converted))
            what = f"still uses nn.DataParallel, in one program with {others}, which was converted before"
            todo = "convert them together, from the originals"
            raise BadInput(file.name, line=left[0] - file.before, what=what, todo=todo)
    if converted:
        return {name: Conversion(text, converted_before=name in converted) for name, text in texts.items()}
    planned = plan(source, options)
    return {file.name: _convert_file(file, texts[file.name], source, planned) for file in source.files}


def in_brief(note: Note, where: str) -> str:
    """A reason why nothing is converted, as one among several."""
    return f"{where}: {note.what.removesuffix(NOTHING)}; {note.todo}"


def _convert_file(file: File, original: str, source: ParsedProgram, planned: Plan) -> Conversion:
    """What the plan means for one file."""

    def in_file(span: Span) -> Span:
        return moved(span, -file.before)

    def as_written(span: Span) -> Span:
        return Span(*(syntax.as_written(place, file.renamed) for place in span))

    edits = [at(edit, in_file) for edit in planned.edits if source.file_of_line(edit.span.start.line) is file]
    own = (each for each in planned.notes if source.file_of_line(each.span.start.line) is file)
    notes = sorted((at(at(note, in_file), as_written) for note in own), key=lambda note: note.span)
    if not planned.edits or not (edits or notes):
        return Conversion(original, notes=notes, refused=planned.refused)
    new_text = _rewrite(file.text, file.name, edits)
    return Conversion(
        new_text,
        edits=sorted((at(each, as_written) for each in edits), key=lambda edit: edit.span.start),
        notes=notes,
        changed=new_text != original,
    )


def _rewrite(text: str, filename: str, edits: Sequence[Edit]) -> str:
    try:
        new_text = apply(text, edits)
    except NotRewritable as error:
        raise BadInput(
            filename, line=error.line, what=error.what, todo="change that line, or convert by hand"
        ) from None
    try:
        syntax.check_compiles(new_text, filename)
    except BadInput as error:
        syntax.check_compiles(text, filename)
        # Better no file than a broken one.
        raise EditError(f"the conversion is no Python: {error}") from error
    return new_text
