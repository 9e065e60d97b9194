"""What was changed and why, what needs a person, and how to run the result; as text and as data for JSON."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import click
from click import style

from dp2ddp.convert.pipeline import Conversion
from dp2ddp.rewrite.edits import Edit, Note

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_DIFF_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def diff(name: str, old: str, new: str) -> str:
    """The unified diff from `old` to `new`, as `patch` takes it; newlines as they are in both."""
    lines = difflib.unified_diff(_LINE.findall(old), _LINE.findall(new), fromfile=name, tofile=name)
    # A file without a final newline must say so, or the next line of the diff ends up on the same line.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def colored(text: str) -> str:
    """A diff in a terminal's colors."""
    return "".join(
        style(line, bold=True) if line.startswith(("---", "+++")) else style(line, fg=_DIFF_COLORS.get(line[:1]))
        for line in _LINE.findall(text)
    )


def show_lines(lines: Iterable[str], to_error: bool = True) -> None:
    """Prints lines, in colors on a terminal (not with `NO_COLOR`), never wrapped: programs read them, too."""
    for line in lines:
        click.echo(line, err=to_error, color=False if os.environ.get("NO_COLOR") else None)


def as_data(conversion: Conversion, name: str, output: str | None) -> dict[str, Any]:
    """The summary as plain data, ready for `json.dumps`. Lines are from 1, columns from 0."""
    return {
        "input": name,
        "output": output,
        "changed": conversion.changed,
        "converted_before": conversion.converted_before,
        "refused": conversion.refused,
        "changes": [
            {**_place(edit, conversion), "rule": edit.rule, "reason": edit.reason} for edit in conversion.edits
        ],
        "notes": [
            {**_place(note, conversion), "rule": note.rule, "what": note.what, "todo": note.todo}
            for note in conversion.notes
        ],
    }


def summary_lines(conversion: Conversion, name: str, output: str | None) -> Iterator[str]:
    """What became of one file.

    Args:
        conversion: what became of the script.
        name: the script's name.
        output: the file written, None if none was (a diff, or standard output).
    """
    if conversion.converted_before:
        yield style(f"{name}: converted already, nothing to do", bold=True)
        return
    if not conversion.changed:
        yield style(f"{name}: {'not converted' if conversion.notes else 'nothing to convert'}", bold=True)
        yield from _notes(conversion, name)
        return
    rules = {edit.rule for edit in conversion.edits}
    arrow = f" -> {output}" if output and output != name else ""
    yield style(f"{name}{arrow}: {count(conversion.edits, 'change')} by {count(rules, 'rule')}", bold=True)
    yield from _changes(conversion)
    yield from _notes(conversion, name)


def line_of(finding: Edit | Note, conversion: Conversion) -> str:
    """The line of a finding, ``cell 3:2`` in a notebook."""
    line = finding.span.start[0]
    return str(line if conversion.places is None else conversion.places.of(line))


def _changes(conversion: Conversion) -> Iterator[str]:
    """One line for each change; the same change said twice for one line of source is said once."""
    found = ((line_of(edit, conversion), edit.rule, edit.reason) for edit in conversion.edits)
    for (line, rule, reason), _ in groupby(found):
        yield f"{style(f'{line:>6}', dim=True)}  {style(rule, fg='cyan')}  {reason}"


def _notes(conversion: Conversion, name: str) -> Iterator[str]:
    if not conversion.notes:
        return
    yield style(f"{count(conversion.notes, 'note')}, to be looked at by a person:", bold=True, fg="yellow")
    for note in conversion.notes:
        place = f"{name}:{line_of(note, conversion)}"
        yield f"  {style(place, bold=True)}  {style(note.rule, fg='cyan')}  {note.what}; {note.todo}"


class Step(NamedTuple):
    """One way to run what was converted.

    Attributes:
        command: as typed into a shell, `N` for the number of processes.
        what: what it does; may be empty.
        takes_arguments: whether the script's own arguments follow.
    """

    command: str
    what: str = ""
    takes_arguments: bool = True


#: How to run a notebook that stays one.
CELLS = "Run the notebook's cells: the last ones write the script, and start it on all visible GPUs."


def is_notebook(output: str | None) -> bool:
    """Whether what was written is a notebook."""
    return output is not None and output.endswith(".ipynb")


def steps(name: str, output: str | None) -> Iterator[Step]:
    """How to run a script that was converted; arguments as `how_to_run` takes them."""
    if output is None and not name.startswith("<"):
        yield Step(f"dp2ddp convert {shlex.quote(name)} -o OUTPUT.py", "writes the file; then", False)
    script = shlex.quote(output or "OUTPUT.py")
    yield Step(f"python {script}", "one process on each visible GPU of this machine")
    yield Step(f"torchrun --nproc-per-node=N {script}", "N processes")


def steps_for_several(scripts: Sequence[str]) -> Iterator[Step]:
    """How to run several scripts that were converted."""
    for script in scripts:
        yield Step(f"python {shlex.quote(script)}")


#: Said of them all.
FOR_SEVERAL = "One process on each visible GPU of this machine; or with torchrun --nproc-per-node=N"


def what_it_imports(scripts: int, vendored: bool) -> Iterator[str]:
    """What has to be installed where so many converted scripts run."""
    if not vendored:
        they, run = ("It imports", "it runs") if scripts == 1 else ("They import", "they run")
        yield f"{they} dp2ddp_runtime: pip install dp2ddp-runtime where {run}, or convert with --vendor."


def how_to_run(name: str, output: str | None, vendored: bool) -> Iterator[str]:
    """How to run a script that was converted.

    Args:
        name, output: as `summary_lines` takes them.
        vendored: whether the runtime was copied beside it.
    """
    yield style("How to run it:", bold=True)
    if is_notebook(output):
        yield f"  {CELLS}"
    else:
        yield from map(_step_line, steps(name, output))
    yield from (f"  {line}" for line in what_it_imports(1, vendored))


def how_to_run_several(scripts: Sequence[str], vendored: bool) -> Iterator[str]:
    """How to run several scripts that were converted."""
    yield style("How to run them:", bold=True)
    yield from map(_step_line, steps_for_several(scripts))
    yield f"  {FOR_SEVERAL}"
    yield from (f"  {line}" for line in what_it_imports(len(scripts), vendored))


def _step_line(step: Step) -> str:
    line = f"  {step.command} ..." if step.takes_arguments else f"  {step.command}"
    return f"{line}   {step.what}" if step.what else line


#: Said of what commands start.
FOR_COMMANDS = "once the converted project is installed where dp2ddp_runtime can be imported."


def how_to_run_commands(commands: Sequence[str]) -> Iterator[str]:
    """How to run functions that are started by commands, and that were converted."""
    yield style("How to run what isn't a script:", bold=True)
    for command in commands:
        yield f"  {command} ...   or torchrun --nproc-per-node=N --no-python {command} ..."
    yield f"  {FOR_COMMANDS}"


def _place(finding: Edit | Note, conversion: Conversion) -> dict[str, int]:
    line, column = finding.span.start
    cell = {} if conversion.places is None else conversion.places.of(line)._asdict()
    return {"line": line, "column": column, **cell}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def count(things: Collection[object], name: str) -> str:
    """`3 changes`, `1 note`."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
