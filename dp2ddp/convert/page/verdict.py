"""What comes first on the page: in a word what became of it, and in a sentence what will happen with N GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple, Union

from dp2ddp.convert import report
from dp2ddp.convert.overview import File, Project, Scripts
from dp2ddp.errors import BadInput

Summary = Union[Scripts, Project]


class Verdict(NamedTuple):
    """A badge with its colour, the sentence, and what else there is to say at once."""

    badge: str
    color: str
    sentence: str
    more: Sequence[str] = ()


def of_error(error: BadInput) -> Verdict:
    """Where the input can't be converted at all."""
    line = "" if error.line is None else f", line {error.line}"
    sentence = f"It can't be converted as it is ({error.file}{line}), so with N GPUs it runs as before."
    return Verdict("Not converted", "bad", sentence, ["Nothing was written but this page."])


def of_summary(summary: Summary, scripts: Sequence[File], files: Sequence[File], *, written: bool) -> Verdict:
    """What became of scripts that could be read.

    Args:
        scripts: those that are started.
        files: all that changed, or that notes are about.
        written: whether anything was written, or going to standard output.
    """
    changed = [each for each in files if each.conversion.changed]
    notes = [note for each in files for note in each.conversion.notes]
    if summary.refused:
        return Verdict("Not converted", "bad", _refusal(files), _WHOLE)
    if not changed:
        return _unchanged(scripts, files)
    counts = [f"{_changes(changed)}. {_people(len(notes))}"]
    if isinstance(summary, Project) and summary.output is not None and summary.output != summary.name:
        counts.append(f"Written to `{summary.output}`.")
    if isinstance(summary, Project) and summary.left_alone:
        counts.append(f"{report.count(summary.left_alone, 'script')} could not be converted, and stayed as before.")
    if not written:
        counts.append("This is a preview: nothing was written but this page.")
    badge = ("Converted", "good") if written else ("Preview", "plain")
    if notes or (isinstance(summary, Project) and summary.left_alone):
        badge = (f"{badge[0]}, with open notes" if notes else f"{badge[0]} in part", "warn")
    return Verdict(*badge, _future(scripts, written=written), counts)


_WHOLE = ("Half a conversion would train something else, so nothing of it was changed, and nothing was written.",)


def _future(scripts: Sequence[File], *, written: bool) -> str:
    """What will happen with N GPUs."""
    would = "" if written else "would "
    verb = "starts" if written else "start"
    if len(scripts) == 1:
        name = scripts[0].output if written and scripts[0].output else scripts[0].name
        plain = written and not name.startswith("<") and not report.is_notebook(name)
        run = f"`python {shlex.quote(name)}`" if plain else "the converted script"
        start = f"With N GPUs, {run} {would}{verb} N processes, one on each GPU"
    else:
        start = f"With N GPUs, each of the {len(scripts)} scripts {would}{verb} N processes, one on each GPU"
    alone = "prints and writes" if written else "would print and write"
    return f"{start}. Together they {would}train on the original's very batches, and process 0 alone {alone} files."


def _unchanged(scripts: Sequence[File], files: Sequence[File]) -> Verdict:
    if any(each.conversion.converted_before for each in scripts):
        return Verdict("Converted already", "good", "There is nothing to do: it was converted before.")
    if any(each.conversion.notes for each in files):
        return Verdict("Not converted", "bad", "Nothing was changed: what stands in the way is named below.")
    sentence = "There is nothing to convert: no model is wrapped in nn.DataParallel, so one process runs it, as before."
    return Verdict("Nothing to convert", "plain", sentence)


def _refusal(files: Sequence[File]) -> str:
    """The first thing that stands in the way."""
    for each in files:
        if each.conversion.refused and each.conversion.notes:
            note = each.conversion.notes[0]
            line = report.line_of(note, each.conversion)
            return f"It can't be converted as it is: {each.name}:{line}: {_clause(note.what)}."
    return "It can't be converted as it is."


def _clause(text: str) -> str:
    return text.strip().rstrip(".")


def _changes(changed: Sequence[File]) -> str:
    edits = [edit for each in changed for edit in each.conversion.edits]
    rules = {edit.rule for edit in edits}
    return f"{report.count(edits, 'change')} by {report.count(rules, 'rule')} in {report.count(changed, 'file')}"


def _people(notes: int) -> str:
    if not notes:
        return "Nothing is left for a person to look at."
    return "1 note needs a person." if notes == 1 else f"{notes} notes need a person."
