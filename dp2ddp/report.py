"""What was changed and why, what needs a person, and how to run the result; as text and as data for JSON."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from dp2ddp.edits import Edit, Note
from dp2ddp.pipeline import Conversion
from dp2ddp.rules import Example, Rule

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def diff(name: str, old: str, new: str) -> str:
    """The unified diff from `old` to `new`, as `patch` takes it; newlines as they are in both."""
    lines = difflib.unified_diff(_LINE.findall(old), _LINE.findall(new), fromfile=name, tofile=name)
    # A file without a final newline must say so, or the next line of the diff ends up on the same line.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def colored(text: str) -> Text:
    """A diff in a terminal's colors."""
    shown = Text()
    for line in _LINE.findall(text):
        style = "bold" if line.startswith(("---", "+++")) else _DIFF_STYLES.get(line[:1], "")
        shown.append(line, style)
    return shown


def show_summary(console: Console, conversion: Conversion, name: str, output: str | None, vendored: bool) -> None:
    """Prints the summary of a conversion.

    Args:
        console: where to; plain where it is no terminal.
        name: the script's name.
        output: the file written, None if none was (a diff, or standard output).
        vendored: whether the runtime was copied beside it.
    """
    show_lines(console, summary_lines(conversion, name, output))
    if conversion.changed:
        show_lines(console, how_to_run(name, output, vendored))


def show_lines(console: Console, lines: Iterable[Text]) -> None:
    """Prints lines, never wrapped: they are read by programs, too."""
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def as_data(conversion: Conversion, name: str, output: str | None) -> dict[str, Any]:
    """The summary as plain data, ready for `json.dumps`. Lines are from 1, columns from 0."""
    return {
        "input": name,
        "output": output,
        "changed": conversion.changed,
        "converted_before": conversion.converted_before,
        "refused": conversion.refused,
        "changes": [{**_place(edit), "rule": edit.rule, "reason": edit.reason} for edit in conversion.edits],
        "notes": [
            {**_place(note), "rule": note.rule, "what": note.what, "todo": note.todo} for note in conversion.notes
        ],
    }


def flags_of(example: Example) -> str:
    """The options of the command line that make `example`, its rule's id left out."""
    flags = (
        ["--sync-bn"] * example.sync_bn + ["--clean-keys"] * example.clean_keys + ["--allow-ddp"] * example.allow_ddp
    )
    return " ".join(flags)


def show_rules(console: Console, rules: Sequence[Rule]) -> None:
    """Prints every rule: id, title, why."""
    for rule in rules:
        console.print(Text.assemble((rule.id, "bold cyan"), "  ", (rule.title, "bold")), soft_wrap=True)
        console.print(Text(f"        {_one_line(rule.why)}"), soft_wrap=True)


def show_rule(console: Console, rule: Rule) -> None:
    """Prints one rule with its examples."""
    show_rules(console, [rule])
    for example in rule.examples:
        for title, code in (("before", example.before), ("after", example.after)):
            flags = f" with {flags_of(example)}" if title == "after" and flags_of(example) else ""
            console.print(Text(f"\n{title}{flags}:", "bold"), soft_wrap=True)
            for line in code.rstrip("\n").split("\n"):
                console.print(Text(f"    {line}".rstrip()), soft_wrap=True)


def summary_lines(conversion: Conversion, name: str, output: str | None) -> Iterator[Text]:
    """What became of one file: as `show_summary`, but for how to run it."""
    if conversion.converted_before:
        yield Text(f"{name}: converted already, nothing to do", "bold")
        return
    if not conversion.changed:
        yield Text(f"{name}: {'not converted' if conversion.notes else 'nothing to convert'}", "bold")
        yield from _notes(conversion.notes, name)
        return
    rules = {edit.rule for edit in conversion.edits}
    arrow = f" -> {output}" if output and output != name else ""
    yield Text(f"{name}{arrow}: {count(conversion.edits, 'change')} by {count(rules, 'rule')}", "bold")
    yield from _changes(conversion.edits)
    yield from _notes(conversion.notes, name)


def _changes(edits: Sequence[Edit]) -> Iterator[Text]:
    """One line for each change; the same change said twice for one line of source is said once."""
    for (line, rule, reason), _ in groupby((edit.span.start[0], edit.rule, edit.reason) for edit in edits):
        yield Text.assemble((f"{line:6}", "dim"), "  ", (rule, "cyan"), f"  {reason}")


def _notes(notes: Sequence[Note], name: str) -> Iterator[Text]:
    if not notes:
        return
    yield Text(f"{count(notes, 'note')}, to be looked at by a person:", "bold yellow")
    for note in notes:
        place = f"{name}:{note.span.start[0]}"
        yield Text.assemble("  ", (place, "bold"), "  ", (note.rule, "cyan"), f"  {note.what}; {note.todo}")


def how_to_run(name: str, output: str | None, vendored: bool) -> Iterator[Text]:
    """How to run a script that was converted; as `show_summary`."""
    yield Text("How to run it:", "bold")
    if output is None and not name.startswith("<"):
        yield Text(f"  dp2ddp convert {shlex.quote(name)} -o OUTPUT.py   writes the file; then")
    script = shlex.quote(output or "OUTPUT.py")
    yield Text(f"  python {script} ...   one process on each visible GPU of this machine")
    yield Text(f"  torchrun --nproc-per-node=N {script} ...   N processes")
    if not vendored:
        yield Text("  It imports dp2ddp_runtime: install dp2ddp where it runs, or convert with --vendor.")


def how_to_run_several(scripts: Sequence[str], vendored: bool) -> Iterator[Text]:
    """How to run several scripts that were converted."""
    yield Text("How to run them:", "bold")
    for script in scripts:
        yield Text(f"  python {shlex.quote(script)} ...")
    yield Text("  One process on each visible GPU of this machine; or with torchrun --nproc-per-node=N")
    if not vendored:
        yield Text("  They import dp2ddp_runtime: install dp2ddp where they run, or convert with --vendor.")


def how_to_run_commands(commands: Sequence[str]) -> Iterator[Text]:
    """How to run functions that are started by commands, and that were converted."""
    yield Text("How to run what isn't a script:", "bold")
    for command in commands:
        yield Text(f"  {command} ...   or torchrun --nproc-per-node=N --no-python {command} ...")
    yield Text("  once the converted project is installed where dp2ddp_runtime can be imported.")


def _place(finding: Edit | Note) -> dict[str, int]:
    return {"line": finding.span.start[0], "column": finding.span.start[1]}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def count(things: Collection[object], name: str) -> str:
    """`3 changes`, `1 note`."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
