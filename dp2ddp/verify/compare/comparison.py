"""Compare the recordings of an original and of its conversion: did they train the same model?"""

from __future__ import annotations

from dp2ddp.verify.compare import batches, outcomes, steps, training
from dp2ddp.verify.compare.finding import Finding, relative
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.runs import Run


class Comparison:
    """All that two finished runs, `original` and `converted`, have in common or not.

    Args:
        foreign: the converted script isn't made for this project's runtime: ranks may have any rows of a batch.
        one_gpu: the original is trained as on one GPU, not by replicas.
        diverged: what the runtime says of ranks that have come apart, at which the conversion has ended.

    Attributes:
        ours, theirs, ranks: the recordings of the original, of rank 0 and of all ranks.
        steps: how far the parameters are apart after each step that both made.
        losses: the relative difference of each loss given to `backward`, over all ranks.
        any_rows: whether ranks have other rows of a batch than `nn.DataParallel`'s replicas.
        training: where training parts, if it does; of a script made by hand all that is so by itself.
        lines: printed lines that differ by more than rounding, or records of `logging`.
        files: files that do, and where; nowhere if one side alone has written it.

    Raises:
        FileNotFoundError: a process ended before it recorded anything.
    """

    def __init__(
        self, original: Run, converted: Run, *, foreign: bool = False, one_gpu: bool = False, diverged: str = ""
    ) -> None:
        self.original, self.converted = original, converted
        self.foreign, self.diverged = foreign, diverged
        self.ours, self.ranks = original.recordings()[0], converted.recordings()
        self.theirs = self.ranks[0]
        self.steps = steps.differences(self.ours, self.theirs)
        pairs = zip(self.ours.losses, recording.global_losses(self.ranks))
        self.losses = [relative(loss.value, other) for loss, other in pairs]
        self.any_rows = one_gpu or (foreign and not batches.same_rows(self.ours, self.ranks))
        self.training = training.differences(self)
        self.lines = outcomes.lines(self)
        self.files = outcomes.files(self)

    def hide(self, text: str) -> str:
        """`text` without the paths of the runs' folders, which the scripts don't have from the user."""
        for run in (self.original, self.converted):
            text = text.replace(str(run.folder.resolve()), "")
        return text

    @property
    def worst(self) -> float:
        """The largest difference of a parameter."""
        return max((step.relative for step in self.steps), default=0.0)

    @property
    def findings(self) -> list[Finding]:
        """In what the runs differ, the root first; empty if they agree."""
        return self.findings_beside(None)

    def findings_beside(self, other: Comparison | None) -> list[Finding]:
        """The findings, without lines and files that differ in another comparison, too."""
        follows = any(finding.step is not None or finding.kind == "diverged" for finding in self.training)
        ends = () if follows else outcomes.findings(self, other)
        return [*self.training, *outcomes.structure(self), *ends]
