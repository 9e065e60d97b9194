"""What goes wrong with a side: a rank that waits for another, a script that fails; and what is worth reading of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dp2ddp.verify.run.runs import Run
from dp2ddp.verify.run.side_by_side import SideBySide
from dp2ddp.verify.verdict import Failure

_WARNS = re.compile(r"^(?:dp2ddp: |(?:[^\n]*/)?(?P<at>[^\n/]+:\d+: )\w*Warning: )(?P<text>.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_IN_FRONT = r"(?:\[rank\d+\]: )?"  # of each line of a rank's traceback
_RANK = re.compile(r"^\[rank\d+\]: ")
# What a rank with DDP of its own raises where another one has ended: that one's failure is the cause.
_LOST = re.compile(r"(?:[\w.]+: )?\[[^\]]*/gloo/[^\]]*\] ")
_QUALIFIED = re.compile(r"^dp2ddp_runtime\.[\w.]*\.(?=\w+: )")
_DIVERGED = re.compile(rf"^{_IN_FRONT}dp2ddp_runtime\.[\w.]*Divergence: (.*)$", re.MULTILINE)
#: Frames that are no script's, with the lines of them that a traceback shows.
OWN_FRAMES = re.compile(
    rf'^{_IN_FRONT}  File "(?:<frozen runpy>|[^"\n]*dp2ddp/verify/(?:start/fork_server|run/run_script)\.py)".*\n'
    rf"(?:{_IN_FRONT}    .*\n)*",
    re.MULTILINE,
)
_NATIVE = re.compile(rf"^{_IN_FRONT}(?:frame #\d+: .*|Exception raised from .*)\n", re.MULTILINE)


def failure(side: str, done: Mapping[str, Run], sides: SideBySide) -> Failure | None:
    """Why a side could not run that has ended.

    A script that fails by an exception or a signal could not run; one that just says so by its exit code did. So did a
    conversion whose ranks the runtime has found to come apart: that is a difference.
    """
    run = done[side]
    if not run.exit_code or divergence(run):
        return None
    outputs = [run.output(rank, "stderr") for rank in range(len(run.exit_codes))]
    raised = [text for text in outputs if _TRACEBACK in text]
    own = next((text for text in raised if not _LOST.match(_exception_in(text))), "".join(raised[:1]))
    if own:
        return _failure_of(side, _exception_in(own), own, run.folder, sides)
    alone = side == "converted" and "original" in done and not done["original"].exit_code
    if run.exit_code < 0 or alone:
        return _failure_of(side, f"exit code {run.exit_code}", run.stderr, run.folder, sides)
    return None


def divergence(run: Run) -> str:
    """What the runtime says of ranks that have come apart; empty if they haven't."""
    found = (_DIVERGED.search(run.output(rank, "stderr")) for rank in range(len(run.exit_codes)))
    return next((match[1] for match in found if match), "")


def timed_out(side: str, seconds: float, places: Mapping[str, Path], sides: SideBySide) -> Failure:
    """A side that had no end."""
    stderr = "".join(path.read_text(errors="replace") for path in sorted(places[side].glob("rank*/stderr.txt")))
    return _failure_of(side, f"still running after {seconds:.0f} seconds", stderr, places[side], sides)


def _failure_of(side: str, reason: str, stderr: str, folder: Path, sides: SideBySide) -> Failure:
    """A failure, with lines by their files' own names. Ranks that have waited for long have told where each is."""
    wrote = OWN_FRAMES.sub("", stderr).replace(f"{folder.resolve() / 'work'}/", "")
    name = (lambda text: text) if side == "original" else sides.by_own_names
    events = folder / "rank0" / "events.jsonl"
    split = side == "original" and events.exists() and '{"kind": "split"' in events.read_text()
    return Failure(side, name(reason), name(_NATIVE.sub("", wrote)), in_replicas=split)


def warnings(original: str, converted: str) -> list[str]:
    """What the converted script, or the runtime in it, warns of on standard error, and the original doesn't."""
    known = {match["text"] for match in _WARNS.finditer(original)}
    told = [match for match in _WARNS.finditer(converted) if match["text"] not in known]
    return list(dict.fromkeys(f"{match['at'] or ''}{match['text']}" for match in told))


def _exception_in(stderr: str) -> str:
    """The first line of what the last traceback ends with: the exception, whose message may have more lines."""
    lines = [_RANK.sub("", line) for line in stderr.rpartition(_TRACEBACK)[2].splitlines()[1:]]
    found = next((line for line in lines if line.strip() and not line.startswith(" ")), "an exception")
    return _QUALIFIED.sub("", found)
