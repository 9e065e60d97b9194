"""What two runs that train alike printed, logged and wrote otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dp2ddp.verify.compare.finding import Finding, shown
from dp2ddp.verify.compare.saved import ONLY_IN, FileDifference

if TYPE_CHECKING:
    from dp2ddp.verify.compare.comparison import Comparison
    from dp2ddp.verify.compare.printed import LineDifference

_MOST = 5  # files that are told of one by one
_NOT_WRITTEN = "it is not written, or by another rank than 0, whose files go nowhere"
_NOT_THE_BATCH_S = "training is the same, so this is a number of one rank's rows, or one that is reduced twice"


def findings(comparison: Comparison) -> list[Finding]:
    """The first line that differs, and the files that do."""
    logged = {text for run in comparison.recordings[:2] for text in run.noted["logged"]}
    return [*([_printed(comparison.lines, logged)] if comparison.lines else []), *_files(comparison)]


def _printed(lines: Sequence[LineDifference], logged: set[str]) -> Finding:
    first = lines[0]
    how = "logged" if {first.original, first.converted} & logged else "printed"
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    what = f"{how} line {first.line}: {shown(first.original)}, converted {shown(first.converted)}{more}"
    if first.original is None or first.converted is None:
        which = "original" if first.converted is None else "converted script"
        return Finding("missing", what, f"a line that only the {which} prints")
    if first.places is None:
        return Finding("text", what)
    size = max(math.inf if line.whole or line.places is None else line.relative for line in lines)
    return Finding("printed", what, _NOT_THE_BATCH_S, size=size)


def _files(comparison: Comparison) -> Iterator[Finding]:
    """Each file that differs, or that one side didn't write."""
    for name, places in [*comparison.files.items()][:_MOST]:
        ranks = enumerate(comparison.recordings[2:], start=1)
        writer = next((rank for rank, run in ranks if name in run.noted["wrote"]), None)
        by_rank = "" if writer is None else f"rank {writer} writes it, too"
        if places:
            yield _file(name, places, by_rank)
        elif name in comparison.original.files():
            yield Finding("missing", f"{name}: only the original writes it", by_rank or _NOT_WRITTEN)
        else:
            yield Finding("missing", f"{name}: only the converted script writes it", by_rank)
    if len(comparison.files) > _MOST:
        yield Finding("file", f"{len(comparison.files) - _MOST} more files differ")


def _file(name: str, places: Sequence[FileDifference], by_rank: str) -> Finding:
    more = f" (and {len(places) - 1} more places)" if len(places) > 1 else ""
    keys = [place.where.partition(ONLY_IN)[0] for place in places if ONLY_IN in place.where]
    if keys:
        plain = {key.replace("module.", "") for key in keys}
        cause = "the keys differ only by `module.`" if 2 * len(plain) == len(keys) else by_rank
        return Finding("keys", f"{name}: {places[0].where}{more}", cause)
    size = max(place.relative for place in places)
    by = places[0].values or ("" if math.isinf(size) else f" differs by {size:.1e}")
    return Finding("file", f"{name}: {places[0].where}{by}{more}", by_rank, size=size)
