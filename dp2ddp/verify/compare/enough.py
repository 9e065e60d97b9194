"""When two runs that agree have been seen to do enough: `--steps auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dp2ddp.verify.compare.steps import Steps
from dp2ddp.verify.counting import counted
from dp2ddp.verify.run.recording import Batch

LEAST_STEPS = 20
_INTO_THE_NEXT = 2  # steps of the next pass: its shuffle is another one
_LOOKS = 64  # while the number of steps doubles: looking takes as long as there were batches


@dataclass(frozen=True)
class Pass:
    """An iteration over a loader: the steps made before it began and when it was over (None: it isn't).

    `ragged` is set where its last batch was smaller than its first.
    """

    began: int
    over: int | None
    ragged: bool = False

    @property
    def trains(self) -> bool:
        """Whether steps were made in it."""
        return self.over is None or self.over > self.began


@dataclass(frozen=True)
class Seen:
    """What was seen of the original before it was ended, and what not.

    Attributes:
        steps: optimizer steps.
        passes: whole iterations over the training data.
        ragged: whether the last batch of one was smaller than the others.
        evaluations: whole iterations over a loader without a step.
        files: files written.
    """

    steps: int
    passes: int
    ragged: bool
    evaluations: int
    files: int

    def __str__(self) -> str:
        last = " (a smaller last batch included)" if self.ragged else ""
        seen = [
            f"{counted(self.passes, 'whole pass', 'es')} over the training data{last} and the beginning of the next"
        ]
        seen += [counted(self.evaluations, "evaluation")] if self.evaluations else []
        seen += [counted(self.files, "file")] if self.files else []
        missing = ["an evaluation"] if not self.evaluations else []
        missing += ["a file being written"] if not self.files else []
        missing += ["what only happens later (a schedule, a layer that is unfrozen, the end of the script)"]
        return f"seen were {', '.join(seen)}; not seen: {', '.join(missing)}"


class Enough:
    """Says when to end two runs.

    They are ended where they differ. Where they agree (the
    same bits at every step; in float64 within the tolerance), after at least `LEAST_STEPS` steps and a whole pass over
    the training data: with an evaluation, a file that was written, and two steps of the next pass. A second whole pass
    stands for what a script does at its end only.

    Args:
        tolerance: the largest relative difference that counts as agreement.
        exact: only the same bits do.
        writes: whether the original has written a file by now.
    """

    def __init__(self, tolerance: float, exact: bool, writes: Callable[[], bool]) -> None:
        self._tolerance = tolerance
        self._allowed = 0.0 if exact else tolerance
        self._writes = writes
        self._agree = True

    def __call__(self, steps: Steps) -> bool:
        """Asked after each step that was compared."""
        worst = steps.differences[-1].relative
        self._agree = self._agree and worst <= self._allowed and steps.apart is None
        if worst > self._tolerance or steps.apart is not None:
            return True
        made = len(steps.differences)
        if not self._agree or made < LEAST_STEPS or made % max(1, made // _LOOKS):
            return False
        whole = passes(steps.recordings[0].batches, made)
        training = [each for each in whole if each.trains]
        over = [each for each in training if each.over is not None]
        if not over or made < training[-1].began + _INTO_THE_NEXT or training[-1].over is not None:
            return False
        return len(over) > 1 or (len(whole) > len(training) and self._writes())


def passes(batches: Sequence[Batch], made: int) -> list[Pass]:
    """The iterations over loaders that began in the first `made` steps.

    An iteration is over when another one begins after its last batch; so loaders that are read side by side all are
    when the next epoch begins.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, batch in enumerate(batches):
        if batch.step < made:
            first.setdefault(batch.iterator, index)
            last[batch.iterator] = index
    found = []
    for iterator, end in last.items():
        began, final = batches[first[iterator]], batches[end]
        later = [index for index in first.values() if index > end]
        ragged = len(final.indices) < len(began.indices) if isinstance(began.indices, list) else False
        found.append(Pass(began.step, batches[min(later)].step if later else None, bool(later) and ragged))
    return found


def seen(batches: Sequence[Batch], made: int, files: int) -> Seen:
    """What a run of `made` steps has shown."""
    whole = [each for each in passes(batches, made) if each.over is not None]
    training = [each for each in whole if each.trains]
    ragged = any(each.ragged for each in training)
    return Seen(made, len(training), ragged, len(whole) - len(training), files)
