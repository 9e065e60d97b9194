"""Compare the recordings of an original and of its conversion: did they train the same model?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dp2ddp.verify.compare import batches, outcomes, printed, saved, steps, training
from dp2ddp.verify.compare.finding import TOLERANCE, Finding, relative
from dp2ddp.verify.compare.printed import LineDifference
from dp2ddp.verify.compare.saved import FileDifference, Hiding
from dp2ddp.verify.compare.steps import StepDifference
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.recording import Recording
from dp2ddp.verify.run.runs import Run

_EVENTS = "events.out.tfevents"  # TensorBoard's files carry times, and the time and process in their names


@dataclass(frozen=True)
class Comparison:
    """All that two runs have in common or not.

    Args:
        original, converted: the runs.
        recordings: the original's recording and those of the converted script's ranks.
        steps: how far the parameters are apart after each step that both made.
        losses: relative difference of each loss given to `backward`, over all ranks.
        training: where training parts, if it does; of a script made by hand all that is so by itself.
        structure: what ranks do that only one should; the exit code.
        lines: printed lines that differ by more than rounding, or records of `logging`.
        files: files that do, and where; nowhere if one side alone has written it.
        any_rows: ranks have other rows of a batch than `nn.DataParallel`'s replicas.
    """

    original: Run
    converted: Run
    recordings: tuple[Recording, ...]
    steps: tuple[StepDifference, ...]
    losses: tuple[float, ...]
    training: tuple[Finding, ...]
    structure: tuple[Finding, ...]
    lines: tuple[LineDifference, ...]
    files: Mapping[str, Sequence[FileDifference]]
    any_rows: bool

    @property
    def worst(self) -> float:
        """The largest difference of a parameter."""
        return max((step.relative for step in self.steps), default=0.0)

    @property
    def findings(self) -> list[Finding]:
        """In what the runs differ, the root first; empty if they agree."""
        follows = any(finding.step is not None or finding.kind == "diverged" for finding in self.training)
        ends = [] if follows else outcomes.findings(self)
        return [*self.training, *self.structure, *ends]


def compare(
    original: Run, converted: Run, *, foreign: bool = False, one_gpu: bool = False, diverged: str = ""
) -> Comparison:
    """Compare two finished runs.

    Args:
        original, converted: the runs.
        foreign: the converted script isn't made for this project's runtime: ranks may have any rows of a batch.
        one_gpu: the original is trained as on one GPU, not by replicas.
        diverged: what the runtime says of ranks that have come apart.

    Raises:
        FileNotFoundError: a process ended before it recorded anything.
    """
    (ours,), theirs = original.recordings()[:1], converted.recordings()
    files = _outputs(original), _outputs(converted)
    hide = original.hide, converted.hide
    updates = steps.differences(ours, theirs[0])
    logs = ["\n".join(map(str, run.noted["logged"])) for run in (ours, theirs[0])]
    silent = 1 if foreign else len(converted.exit_codes)  # that others print is told by itself
    texts = [
        (original.stdout, converted.stdout),
        *(("", converted.output(rank, "stdout")) for rank in range(1, silent)),
        logs,
    ]
    return Comparison(
        original,
        converted,
        (ours, *theirs),
        tuple(updates),
        tuple(relative(loss.value, other) for loss, other in zip(ours.losses, recording.global_losses(theirs))),
        tuple(training.differences(training.Sides(ours, theirs, updates, foreign, foreign or one_gpu, diverged))),
        tuple([] if diverged else _structure(original, converted, theirs, foreign)),
        tuple(line for a, b in texts for line in _differing(hide[0](a), hide[1](b))),
        _files(*files, hide),
        any_rows=one_gpu or (foreign and not batches.same_rows(ours, theirs)),
    )


def _differing(original: str, converted: str) -> Iterator[LineDifference]:
    return (line for line in printed.differences(original, converted) if not line.is_rounding)


def _structure(original: Run, converted: Run, ranks: Sequence[Recording], foreign: bool) -> Iterator[Finding]:
    """What more than one rank of a script without the runtime does; the exit code."""
    for rank, theirs in enumerate(ranks[1:] if foreign else (), start=1):
        lines = converted.output(rank, "stdout").splitlines()
        wrote = theirs.noted["wrote"]
        if wrote:
            yield Finding("written", f"{wrote[0]} is written by rank {rank}, too{_and_more(wrote)}")
        if lines:
            yield Finding("prints", f"rank {rank} prints, too: {lines[0]!r}{_and_more(lines)}")
        if wrote or lines:
            break
    if original.exit_code != converted.exit_code:
        yield Finding("exit", f"exit code {original.exit_code}, converted {converted.exit_code}")


def _and_more(things: Sequence[str]) -> str:
    return f" (and {len(things) - 1} more)" if len(things) > 1 else ""


def _outputs(run: Run) -> dict[str, Path]:
    return {name: path for name, path in run.files().items() if _EVENTS not in name}


def _files(one: Mapping[str, Path], other: Mapping[str, Path], hide: Hiding) -> Mapping[str, Sequence[FileDifference]]:
    found: dict[str, Sequence[FileDifference]] = dict.fromkeys(sorted(one.keys() ^ other.keys()), ())
    for name in sorted(one.keys() & other.keys()):
        places = [each for each in saved.differences(name, one[name], other[name], hide) if each.relative > TOLERANCE]
        if places:
            found[name] = places
    return found
