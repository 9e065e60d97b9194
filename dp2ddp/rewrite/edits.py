"""What a rule asks for: edits of the source, and notes for a person.

Both are plain data. `rewrite.apply` carries the edits out; `report` shows them. A rule never touches the syntax tree
itself, so rules can't get in each other's way.

Templates and lines are Python source in which a *hole*, a name of the form ``__h_NAME__``, stands for the original
expression at ``holes[NAME]``. They call the runtime as ``ddp``; the rewriter adds the import where it is missing and
takes another name where the script already uses ``ddp``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, Union

from dp2ddp.source.spans import Span

#: How templates call the runtime.
RUNTIME = "ddp"
RUNTIME_USE = re.compile(rf"(?<![\w.]){RUNTIME}(?=\.)")
HOLE = re.compile(r"__h_(\w+?)__")


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

    @property
    def source(self) -> str:
        """What is written, with holes for pieces of the script; empty where nothing is."""
        return ""


@dataclass(frozen=True)
class WithHoles(Edit):
    """A change that writes something: `text`, lines for statements."""

    text: str | Sequence[str]
    holes: Mapping[str, Span] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.text if isinstance(self.text, str) else "\n".join(self.text)


class ReplaceExpr(WithHoles):
    """The expression at `span` becomes `text`, an expression with holes.

    A hole lies inside `span`, or is `span` itself: then the edit wraps the expression. Holes keep their formatting and
    comments byte for byte, with every edit inside of them applied; parentheses are added where they may be needed.
    """


class ReplaceStatement(WithHoles):
    """The simple statement at `span` becomes the lines `text`; comments above and behind it stay."""


class InsertBefore(WithHoles):
    """The lines `text` come right above the statement at `span`."""


class InsertAfter(WithHoles):
    """The lines `text` come below the statement at `span`, indented as it is; on its line where that is shared."""


class RemoveStatement(Edit):
    """The statement at `span` goes; comments above it stay. A block left empty gets ``pass``."""


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
_AnyFinding = TypeVar("_AnyFinding", bound=Union[Edit, Note])


def at(finding: _AnyFinding, place: Callable[[Span], Span]) -> _AnyFinding:
    """A finding, with its span and holes where `place` puts them."""
    if not isinstance(finding, WithHoles):
        return replace(finding, span=place(finding.span))
    holes = {name: place(span) for name, span in finding.holes.items()}
    return replace(finding, span=place(finding.span), holes=holes)
