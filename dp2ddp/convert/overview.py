"""What became of the files of a conversion: for the summary, and as data for machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dp2ddp.convert.findings import Found, found_in, refusal
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.errors import BadInput

#: What is said of a script that was asked for, and that needs no conversion.
IDLE = "never comes to a wrap, and stays as it is"
#: Said of a script that trains on one device.
ONE_DEVICE = "every DataParallel in it is on one device, and it stays one process"


@dataclass(frozen=True)
class File:
    """One file, by the names that the user knows: what it is, what was written (None if nothing), what was done.

    Attributes:
        unchanged: what to say of it if it neither changes nor has notes: what became of its program.
    """

    name: str
    output: str | None
    conversion: Conversion
    unchanged: str | None = None

    def found(self) -> Iterator[Found]:
        """What changed, and what needs a person."""
        return found_in(self.conversion, self.name)

    def as_data(self) -> dict[str, Any]:
        """What became of it, ready for `json.dumps`."""
        done = self.conversion
        return {
            "input": self.name,
            "output": self.output,
            "changed": done.changed,
            "converted_before": done.converted_before,
            "refused": done.refused,
        }


def of_program(paths: Iterable[str], conversions: Mapping[str, Conversion]) -> str | None:
    """What became of a script made of the files `paths`, where it doesn't change itself; None for nothing at all."""
    files = [conversions[path] for path in paths]
    if any(each.on_one_device for each in files):
        return ONE_DEVICE
    if any(each.changed for each in files):
        return "needs no change itself"
    return "not converted" if any(each.notes for each in files) else None


def unreached(conversions: Mapping[str, Conversion], names: Callable[[str], str]) -> dict[str, Sequence[str]]:
    """What stays as it is in files that change, as no script with a wrap comes to it; by what `names` calls these."""
    return {names(path): done.unreached for path, done in sorted(conversions.items()) if done.unreached}


@dataclass(frozen=True)
class Scripts:
    """What became of scripts that were given one by one.

    Attributes:
        given: the scripts.
        others: files that they import and that have to change, too, or that notes are about.
        unread: files that they import and that could not be read.
        vendored: the runtime lies beside the output.
        refused: one of them can't be converted, so nothing was written.
        unreached: what stays as it is in their files, as no script with a wrap comes to it.
    """

    given: Sequence[File]
    others: Sequence[File]
    unread: Sequence[BadInput]
    vendored: bool
    refused: bool = False
    unreached: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def found(self) -> Iterator[Found]:
        """What changed, and what needs a person, in all files."""
        return (found for each in (*self.given, *self.others) for found in each.found())

    def as_data(self) -> dict[str, Any]:
        """What there is to say besides, ready for `json.dumps`."""
        files = [each.as_data() for each in (*self.given, *self.others)]
        return _data(files, [each.name for each in self.given], [str(each) for each in self.unread])


@dataclass(frozen=True)
class Project:
    """What became of a directory.

    Attributes:
        name: the directory.
        output: where it was written, None if it wasn't.
        entries: the scripts that are started, and that were converted.
        files: these scripts, and the other files that changed, or that notes are about.
        total: the number of files in it.
        left_alone: scripts that were left as they are, and why.
        warnings: what else the user should know about files.
        left_out: how much was left out, by reason.
        vendored: the runtime lies beside each script.
        touched: other scripts that import files that changed, and which.
        commands: the commands that start entries, by the entry's name.
        refused: a script that was asked for can't be converted, so nothing was written.
        unreached: what stays as it is in files that are converted, as no script with a wrap comes to it.
    """

    name: str
    output: str | None
    entries: Sequence[File]
    files: Sequence[File]
    total: int
    left_alone: Sequence[tuple[str, BadInput]]
    warnings: Sequence[BadInput]
    left_out: Mapping[str, int]
    vendored: bool
    touched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: bool = False
    unreached: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def found(self) -> Iterator[Found]:
        """What changed, and what needs a person, in all files; and which scripts were left alone."""
        yield from (found for each in self.files for found in each.found())
        yield from (refusal(name, why) for name, why in self.left_alone)

    def as_data(self) -> dict[str, Any]:
        """What there is to say besides, ready for `json.dumps`."""
        return _data(
            [each.as_data() for each in self.files],
            [each.name for each in self.entries],
            [str(each) for each in self.warnings],
            left_alone=[{"input": name, "why": str(why)} for name, why in self.left_alone],
            left_out=dict(self.left_out),
            imported_by={name: list(files) for name, files in self.touched.items()},
        )


def _data(
    files: Sequence[Mapping[str, Any]], entries: Sequence[str], warnings: Sequence[str], **more: Any
) -> dict[str, Any]:
    """One form for scripts and for directories; what only these have is empty for those."""
    nothing: dict[str, Any] = {"left_alone": [], "left_out": {}, "imported_by": {}}
    return {"files": files, "entries": entries, "warnings": warnings, **nothing, **more}
