"""What two runs printed, logged and wrote otherwise, and their exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dp2ddp.verify.compare import printed, saved
from dp2ddp.verify.compare.finding import TOLERANCE, Finding, shown, size_shown
from dp2ddp.verify.compare.printed import LineDifference
from dp2ddp.verify.compare.saved import ONLY_IN, FileDifference

if TYPE_CHECKING:
    from dp2ddp.verify.compare.comparison import Comparison

_MOST = 5  # files that are told of one by one
_EVENTS = "events.out.tfevents"  # TensorBoard's files carry times, and the time and process in their names
_NOT_WRITTEN = "it is not written, or by another rank than 0, whose files go nowhere"
_NOT_THE_BATCH_S = "training is the same, so this is a number of one rank's rows, or one that is reduced twice"


def lines(both: Comparison) -> list[LineDifference]:
    """The lines that differ: what rank 0 prints, what the runtime's other ranks do, which should be nothing; logs."""
    one, other = both.original, both.converted
    silent = 1 if both.foreign else len(other.exit_codes)  # that others print is told by itself
    texts = [(one.stdout, other.stdout), *(("", other.output(rank, "stdout")) for rank in range(1, silent))]
    a, b = ("\n".join(map(str, run.noted["logged"])) for run in (both.ours, both.theirs))
    found = (line for a, b in [*texts, (a, b)] for line in printed.differences(both.hide(a), both.hide(b)))
    return [line for line in found if not line.is_rounding]


def files(both: Comparison) -> dict[str, Sequence[FileDifference]]:
    """The files that differ, and where."""
    one, other = (
        {name: path for name, path in run.files().items() if _EVENTS not in name}
        for run in (both.original, both.converted)
    )
    found: dict[str, Sequence[FileDifference]] = dict.fromkeys(sorted(one.keys() ^ other.keys()), ())
    for name in sorted(one.keys() & other.keys()):
        places = saved.differences(name, one[name], other[name], both.hide)
        found[name] = [each for each in places if each.relative > TOLERANCE]
    return {name: places for name, places in found.items() if places or name not in one or name not in other}


def structure(both: Comparison) -> Iterator[Finding]:
    """What more than one rank of a script without the runtime does; the exit code."""
    if both.diverged:
        return
    for rank, theirs in enumerate(both.ranks[1:] if both.foreign else (), start=1):
        printed_there, wrote = both.converted.output(rank, "stdout").splitlines(), theirs.noted["wrote"]
        if wrote:
            yield Finding("written", f"{wrote[0]} is written by rank {rank}, too{_and_more(wrote)}")
        if printed_there:
            yield Finding("prints", f"rank {rank} prints, too: {printed_there[0]!r}{_and_more(printed_there)}")
        if wrote or printed_there:
            break
    codes = both.original.exit_code, both.converted.exit_code
    if codes[0] != codes[1]:
        yield Finding("exit", f"exit code {codes[0]}, converted {codes[1]}")


def findings(both: Comparison, but: Comparison | None) -> Iterator[Finding]:
    """The first line that differs, and the files that do; without those that differ in `but`, too."""
    known = {line.line for line in but.lines} if but else set()
    told = [line for line in both.lines if line.line not in known]
    if told:
        yield _printed(told, {text for run in (both.ours, both.theirs) for text in run.noted["logged"]})
    names = [name for name in both.files if not but or name not in but.files]
    for name in names[:_MOST]:
        ranks = enumerate(both.ranks[1:], start=1)
        by_rank = next((f"rank {rank} writes it, too" for rank, run in ranks if name in run.noted["wrote"]), "")
        if both.files[name]:
            yield _file(name, both.files[name], by_rank)
        else:
            is_ours = name in both.original.files()
            what = f"{name}: only the {'original' if is_ours else 'converted script'} writes it"
            yield Finding("missing", what, by_rank or (_NOT_WRITTEN if is_ours else ""))
    if len(names) > _MOST:
        yield Finding("file", f"{len(names) - _MOST} more files differ")


def _printed(found: Sequence[LineDifference], logged: set[str]) -> Finding:
    first = found[0]
    how = "logged" if {first.original, first.converted} & logged else "printed"
    what = f"{how} line {first.line}: {shown(first.original)}, converted {shown(first.converted)}{_and_more(found)}"
    if first.original is None or first.converted is None:
        which = "original" if first.converted is None else "converted script"
        return Finding("missing", what, f"a line that only the {which} prints")
    if first.places is None:
        return Finding("text", what)
    return Finding("printed", what, _NOT_THE_BATCH_S, size=max(line.size for line in found))


def _file(name: str, places: Sequence[FileDifference], by_rank: str) -> Finding:
    more = _and_more(places, " places")
    keys = [place.where.partition(ONLY_IN)[0] for place in places if ONLY_IN in place.where]
    if keys:
        plain = {key.replace("module.", "") for key in keys}
        cause = "the keys differ only by `module.`" if 2 * len(plain) == len(keys) else by_rank
        return Finding("keys", f"{name}: {places[0].where}{more}", cause)
    size = max(place.relative for place in places)
    return Finding("file", f"{name}: {places[0].where}{places[0].values or size_shown(size)}{more}", by_rank, size=size)


def _and_more(things: Sequence[object], what: str = "") -> str:
    return f" (and {len(things) - 1} more{what})" if len(things) > 1 else ""
