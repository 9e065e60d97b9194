"""What single processes do: read off the edits, which say so, and the calls that they change."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from dp2ddp.analysis.facts import Facts
from dp2ddp.convert.page.flow import ALONE, MACHINE, TOLD, Deed, Part
from dp2ddp.convert.page.held import Held
from dp2ddp.rewrite.edits import Edit, InsertBefore, ReplaceExpr, WrapStatement
from dp2ddp.source.nodes import argument, keyword
from dp2ddp.source.spans import Span

#: What the runtime's functions mean: what is done, and by whom.
_DEEDS = {
    "ddp.save": ("writes", ALONE),
    "ddp.main_only": ("writes", ALONE),
    "ddp.broadcast": ("decides", TOLD),
    "ddp.main_first": ("fetches", MACHINE),
}


class Deeds:
    """What `edits` have done by single processes, and to which of the `models`."""

    def __init__(self, facts: Facts, models: Sequence[ast.expr], edits: Sequence[Edit]) -> None:
        self.facts = facts
        self.source = facts.source
        self._held = Held(facts)
        self._models = models
        self._edits = edits

    def starts(self) -> Iterator[Part]:
        """Where the processes start."""
        for edit in self._edits:
            if isinstance(edit, InsertBefore) and any("ddp.setup(" in line for line in edit.lines):
                yield Part("ddp.setup", edit.reason, *self._place(edit.span))

    def found(self) -> Iterator[Deed]:
        """What isn't done by every process alike, in the order of the source."""
        calls = {self.source.span(node): call for call in self.source.calls for node in (call, call.func)}
        for edit in self._edits:
            known = next((deed for start, deed in _DEEDS.items() if start in _written(edit)), None)
            if known is None:
                continue
            what, who = known
            call = calls.get(edit.span)
            name = None if call is None else self._target(call)
            detail = self._text(edit.span) if call is None else self.source.brief(call)
            models = () if call is None or what != "writes" else tuple(self._in_it(call))
            yield Deed(name or detail, detail, *self._place(edit.span), what, who, models)

    def _target(self, call: ast.Call) -> str | None:
        """The file that a call writes or reads, as written."""
        function = self.facts.catalogue.of(self.facts.names.qualified(call.func))
        given: ast.expr | None = None
        opened = self.facts.files.opened(call)
        writing = self.facts.writers.of(call)
        if function is not None and function.does in ("saves", "reads", "changes"):
            given = argument(call, *function.file) if function.file is not None else None
        elif opened is not None:
            given = opened.path
        elif writing is not None and not writing.command and writing.names:
            given = writing.names[0]
        else:
            given = keyword(call, "log_dir") or keyword(call, "logdir")
        return None if given is None else self._file(self._value(given))

    def _file(self, path: ast.expr) -> str:
        """The name of a file: `args.out/net.pt` for `os.path.join(args.out, "net.pt")`, anything else as written."""
        if not (isinstance(path, ast.Call) and self.facts.names.qualified(path.func) == "os.path.join"):
            return self.source.brief(path)
        parts = (a.value if isinstance(a, ast.Constant) else self.source.brief(a) for a in path.args)
        return "/".join(map(str, parts))

    def _value(self, given: ast.expr) -> ast.expr:
        """What a name stands for, where that is one thing."""
        if not isinstance(given, ast.Name):
            return given
        values = [value for value in self.facts.provenance.of(given) if not isinstance(value, (ast.Name, ast.Tuple))]
        return values[0] if len(values) == 1 else given

    def _in_it(self, call: ast.Call) -> Iterable[int]:
        """The models whose state a call is given."""
        given = [node for value in (*call.args, *(k.value for k in call.keywords)) for node in ast.walk(value)]
        held = {site for node in given if isinstance(node, ast.expr) for site in self._held.sites(node)}
        return [number for number, model in enumerate(self._models) if model in held]

    def _text(self, span: Span) -> str:
        return " ".join(self.source.lines[span.start.line - 1].split())

    def _place(self, span: Span) -> tuple[str, int]:
        file = self.source.file_of_line(span.start.line)
        return file.name, span.start.line - file.before


def _written(edit: Edit) -> str:
    """What an edit writes, up to the original's own text."""
    if isinstance(edit, ReplaceExpr):
        return edit.template
    return edit.header if isinstance(edit, WrapStatement) else ""
