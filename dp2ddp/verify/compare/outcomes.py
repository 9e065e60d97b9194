"""What two runs printed, logged and wrote: in which lines and files they differ, and the likely cause."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import Finding
from dp2ddp.verify.compare.saved import FileDifference

_ONLY_IN = " (only in the "


def outcome_findings(comparison: Comparison, differs: bool) -> Iterator[Finding]:
    """All that differs; with causes unless training `differs`. What a model's tensors are comes before its numbers."""
    wrong = {file.file for file in comparison.wrong_files if file.tensor and not differs}
    saved = list(file_findings(comparison, differs))
    yield from (each for name, each in saved if name in wrong)
    yield from printed_finding(comparison, differs)
    yield from (each for name, each in saved if name not in wrong)


def printed_finding(comparison: Comparison, differs: bool) -> Iterator[Finding]:
    """The first line that differs, of what was printed, or else logged; with a cause unless training `differs`."""
    lines = comparison.wrong_lines
    verb = "printed"
    if not lines:  # what is logged is printed as well, as a rule
        lines, verb = comparison.wrongly_logged, "logged"
    if not lines:
        return
    first = lines[0]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    what = f"{verb} line {first.line}: {first.original!r}, converted {first.converted!r}{more}"
    size = max(math.inf if line.whole or line.places is None else line.relative for line in lines)
    if differs:
        cause = ""
    elif any(line.original is None for line in lines):
        cause = "a line that the original doesn't print, or that every rank prints"
    elif any(line.converted is None for line in lines):
        cause = "a line that only the original prints"
    elif first.places is None:
        cause = "another line: one that only one side prints, or that says something else"
    else:
        cause = "training is the same, so this is a number of one rank's rows, or one that is reduced twice"
        cause += _factor_in_words(first.factor)
    yield Finding("printed", what, cause, size=size)


def file_findings(comparison: Comparison, differs: bool) -> Iterator[tuple[str, Finding]]:
    """Each file that differs, or that one side didn't write; with a cause unless training `differs`."""
    wrong: dict[str, list[FileDifference]] = {}
    for file in comparison.wrong_files:
        wrong.setdefault(file.file, []).append(file)
    sides = comparison.original.files().keys(), {comparison.hidden(name) for name in comparison.converted.files()}
    for name, places in wrong.items():
        if (name in sides[0]) != (name in sides[1]):
            renamed = bool(sides[0] - sides[1] and sides[1] - sides[0])
            yield name, _missing_file(name, places[0].where, name in sides[0], renamed)
            continue
        keys = [place.where.partition(_ONLY_IN)[0] for place in places if _ONLY_IN in place.where]
        more = f" (and {len(places) - 1} more places)" if len(places) > 1 else ""
        writer = next((rank for rank, run in enumerate(comparison.recordings[2:], 1) if name in run.wrote), None)
        by_rank = "" if writer is None else f"; rank {writer} writes it, too"
        if keys:
            plain = {".".join(part for part in key.split(".") if part != "module") for key in keys}
            plain = {key.replace("/module.", "/") for key in plain}
            cause = "the keys differ only by `module.`" if 2 * len(plain) == len(keys) else "other keys are saved"
            yield name, Finding("keys", f"{name}: {places[0].where}{more}", cause + by_rank)
        else:
            size = max(place.relative for place in places)
            by = "" if math.isinf(size) else f" differs by {size:.1e}"
            cause = "training is the same, so another value is saved: a rank's own, or other content"
            if places[0].tensor:
                cause = (
                    "training is the same, so what is kept beside it is not: an average of it, or a rank's own value"
                )
            cause = "" if differs else cause + _factor_in_words(places[0].factor) + by_rank
            yield name, Finding("file", f"{name}: {places[0].where}{by}{more}", cause, size=size)


def _factor_in_words(factor: float | None) -> str:
    return "" if factor is None else f" ({factor:.4g} times the original's)"


def _missing_file(name: str, what: str, wanted: bool, renamed: bool) -> Finding:
    """A file that one side alone has; `wanted`: the original."""
    cause = "a file that the original doesn't write"
    if renamed:
        cause = "it is written under another name, which may be each rank's own"
    elif wanted:
        cause = "it is not written, or by another rank than 0 alone, whose files go nowhere"
    return Finding("missing", f"{name}: {what}", cause)
