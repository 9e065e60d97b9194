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
    return Verdict("Not converted", "bad", f"{_clause(str(error))}. Nothing was written but this page.")


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
    if len(scripts) == 1:
        name = scripts[0].output if written and scripts[0].output else scripts[0].name
        run = f"`python {shlex.quote(name)}`" if not name.startswith("<") else "the script"
        start = f"With N GPUs, {run} {'starts' if written else 'would start'} N processes, one on each GPU"
    else:
        start = f"With N GPUs, each of the {len(scripts)} scripts {'starts' if written else 'would start'} N processes"
    return f"{start}. Together they train on the original's very batches, and process 0 alone prints and writes files."


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
            return f"It can't be converted as it is: {each.name}:{note.span.start.line}: {_clause(note.what)}."
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
