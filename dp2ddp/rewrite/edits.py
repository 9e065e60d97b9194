"""What a rule asks for: edits of the source, and notes for a person.

Both are plain data. `rewrite.apply` carries the edits out, all in one pass; `report` shows them. A rule never touches
the syntax tree itself, so rules can't get in each other's way.

Templates and lines are Python source in which a *hole*, a name of the form ``__h_NAME__``, stands for the original
expression at ``holes[NAME]``, with every edit inside it already applied. They call the runtime as ``ddp``; the
rewriter adds the import where it is missing and takes another name where the script already uses ``ddp``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, Union

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.source.spans import Span

#: How templates call the runtime.
RUNTIME = "ddp"


@dataclass(frozen=True)
class Edit:
    """One change. Edits on the same node compose in list order.

    Attributes:
        rule: the id of the rule that asks for it, such as ``"DDP001"``.
        span: the node that it changes; its line is the one in the report.
        reason: why, in one short sentence.
    """

    rule: str
    span: Span
    reason: str


class WithHoles(Edit):
    """A change that writes `source`, with holes for pieces of the script."""

    holes: Mapping[str, Span]

    @property
    @abstractmethod
    def source(self) -> str:
        """What is written."""


@dataclass(frozen=True)
class ReplaceExpr(WithHoles):
    """The expression at `span` becomes `template`, an expression with holes.

    A hole lies inside `span`, or is `span` itself: then the edit wraps the expression. Holes keep their formatting and
    comments byte for byte; parentheses are added where precedence or a line break needs them.
    """

    template: str
    holes: Mapping[str, Span] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.template


@dataclass(frozen=True)
class WithLines(WithHoles):
    """A change that writes statements."""

    lines: Sequence[str]
    holes: Mapping[str, Span] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return "\n".join(self.lines)


class ReplaceStatement(WithLines):
    """The statement at `span` becomes `lines`; its leading comments and its trailing comment stay.

    A line that is nothing but a hole may stand for a whole statement: give the span of that statement.
    """


class InsertBefore(WithLines):
    """`lines` come before the statement at `span`, below its leading blank lines and above its comments.

    A hole may be any expression of the file that lies in an edited statement or in the statement at `span`.
    """


class InsertAfter(WithLines):
    """`lines` come after the statement at `span`, at its indentation. ``a = 1; b = 2`` is split where needed."""


@dataclass(frozen=True)
class RemoveStatement(Edit):
    """The statement at `span` goes; comments above it stay. A block left empty gets ``pass``.

    With `drop_empty_if` an ``if`` without ``else`` goes as a whole when its block is left empty, and an empty ``else``
    goes, too.
    """

    drop_empty_if: bool = False


@dataclass(frozen=True)
class AddImport(Edit):
    """``import module as alias`` at the end of the import block, once, unless the module is imported already.

    It comes above the edit's span, too. Not needed for the runtime: using ``ddp.`` in a template is enough.
    """

    module: str = RUNTIME_PACKAGE
    alias: str | None = RUNTIME


@dataclass(frozen=True)
class Done(Edit):
    """What was changed while the source was read, as nothing else could read it; for the report."""


@dataclass(frozen=True)
class Note:
    """Something that a person has to look at.

    Attributes:
        rule: the id of the rule that found it.
        span: where it is.
        what: what is at stake, as a clause: small letter, no full stop.
        todo: what to do about it, likewise; shown after a semicolon.
    """

    rule: str
    span: Span
    what: str
    todo: str


#: What a rule yields.
Finding = Union[Edit, Note]
_AnyFinding = TypeVar("_AnyFinding", Edit, Note)


def at(finding: _AnyFinding, place: Callable[[Span], Span]) -> _AnyFinding:
    """A finding, with its span and holes where `place` puts them."""
    if not isinstance(finding, WithHoles):
        return replace(finding, span=place(finding.span))
    holes = {name: place(span) for name, span in finding.holes.items()}
    return replace(finding, span=place(finding.span), holes=holes)  # type: ignore[call-arg]
