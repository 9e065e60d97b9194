"""What a rule is: an id, its reasons, examples that are its tests and its documentation, and the edits it asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp2ddp.rewrite.edits import Edit, Finding

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts


@dataclass(frozen=True)
class Options:
    """What the user asked for on the command line.

    Attributes:
        sync_bn: convert BatchNorm to SyncBatchNorm.
        select: the ids of the only rules to run, as the rules' examples have it; empty for all.
        ignore: the ids of rules whose edits are left to a person: each becomes a note.
        allow_ddp: convert a script that can also set up DistributedDataParallel itself, and leave that part alone.
        functions: what functions of libraries do that the catalogue doesn't have, as `name=what it does`.
        rows: in the `collate_fn` of each loader rows stay apart.
    """

    sync_bn: bool = False
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    allow_ddp: bool = False
    functions: tuple[str, ...] = ()
    rows: bool = False


@dataclass(frozen=True)
class Example:
    """A whole small script, and what becomes of it with that rule selected, and the rules in `also`.

    Attributes:
        unchanged: a script that stays as it is.
        diff: of any other all lines: a space in front of what stays, `-` of what goes, `+` of what comes.
    """

    unchanged: str = ""
    diff: str = ""
    also: tuple[str, ...] = ()
    sync_bn: bool = False
    allow_ddp: bool = False
    rows: bool = False

    @property
    def before(self) -> str:
        """The script."""
        return self.unchanged or _one_side(self.diff, "+")

    @property
    def converted(self) -> str:
        """What becomes of the script."""
        return self.unchanged or _one_side(self.diff, "-")

    def options(self, rule_id: str) -> Options:
        """What the example is converted with: its own rule, the others that it needs, and its flags."""
        select = frozenset({rule_id, *self.also})
        return Options(sync_bn=self.sync_bn, select=select, allow_ddp=self.allow_ddp, rows=self.rows)


def _one_side(diff: str, other: str) -> str:
    """The lines of a diff but those of the other side."""
    return "".join(line if line == "\n" else line[1:] for line in diff.splitlines(keepends=True) if line[0] != other)


class Rule(ABC):
    """One rule. A rule is stateless, and never looks at another rule.

    Attributes:
        id: ``"DDP001"`` and so on; unique.
        title: what it converts, a few words.
        effect: what its edits make of the script, by which the summary counts them; rules may share one, and one that
            only notes has none.
        effects: of edits that have another effect than that, each reason with what it makes.
        why: two or three sentences for the user who asks why.
        essential: whether what other rules do is only right together with it: then it can't be ignored.
        explains: whether it says why a program, or a use of `DataParallel`, isn't converted. It is asked then, too,
            where no other rule is.
        always: whether it is for programs that wrap no model, too.
        examples: what it changes, or notes; at least one. Run as tests, shown by ``dp2ddp rules ID``.
        valid: what it leaves alone, where a reader may expect otherwise; at least one, unchanged. Tests, too.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    effect: ClassVar[str] = ""
    effects: ClassVar[tuple[tuple[str, str], ...]] = ()
    why: ClassVar[str]
    essential: ClassVar[bool] = False
    explains: ClassVar[bool] = False
    always: ClassVar[bool] = False
    examples: ClassVar[tuple[Example, ...]]
    valid: ClassVar[tuple[Example, ...]] = ()

    @abstractmethod
    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        """The edits and notes that this rule asks for, in the order of the source."""

    def effect_of(self, edit: Edit) -> str:
        """What an edit makes of the script."""
        return dict(self.effects).get(edit.reason, self.effect)
