"""Folders that a script makes for what it fetches: the first rank of each machine makes them there, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from dp2ddp.analysis.dataflow.reaching import ReachingDefinitions
from dp2ddp.analysis.files.fetching import Fetching, Step
from dp2ddp.source.nodes import closure

_MAKING = frozenset({"os.mkdir", "os.makedirs"})


class Folders:
    """Finds the statements that make them."""

    def __init__(self, fetching: Fetching, reaching: ReachingDefinitions) -> None:
        self.source = fetching.source
        self._fetching = fetching
        self._names = fetching.names
        self._writers = fetching.writers
        self._reaching = reaching

    def of(self, steps: Iterable[Step]) -> list[ast.stmt]:
        """The statements that make a folder, and do nothing else, whose path goes into one of these steps."""
        needing = {step.statement: None for step in steps if self._fetching.needs_folder(step.call)}
        if not needing:
            return []
        inside = {node for step in steps for node in ast.walk(step.statement)}
        made = [(call, path) for call in self.source.calls if call not in inside for path in self._made_by(call)]
        named = [self._all_in(statement) for statement in needing] if made else []
        found = (self._whole(call) for call, path in made if any(self._is_in(path, each) for each in named))
        return [*dict.fromkeys(statement for statement in found if statement is not None)]

    def _made_by(self, call: ast.Call) -> list[ast.expr]:
        """The folder that a call makes."""
        if self._names.qualified(call.func) in _MAKING:
            return [*call.args[:1], *(given.value for given in call.keywords if given.arg in ("name", "path"))]
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir"
        writing = self._writers.of(call) if is_method else None
        return [] if writing is None else [*writing.names]

    def _whole(self, call: ast.Call) -> ast.stmt | None:
        """The largest statement around a call that only makes folders, with the question before it."""
        found: ast.stmt | None = None
        for above in self.source.ancestors(call):
            if isinstance(above, ast.stmt):
                if not self._only_makes(above):
                    break
                found = self.source.chain_head(above) if isinstance(above, ast.If) else above
        return found

    def _only_makes(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Call) and bool(self._made_by(statement.value))
        if isinstance(statement, ast.If):
            return self._fetching.asks_files(statement.test) and all(map(self._only_makes, statement.body))
        if isinstance(statement, ast.Try):
            handled = [inner for handler in statement.handlers for inner in handler.body]
            passes = all(isinstance(inner, ast.Pass) for inner in (*handled, *statement.orelse, *statement.finalbody))
            return passes and all(map(self._only_makes, statement.body))
        return False

    def _all_in(self, statement: ast.stmt) -> set[ast.expr]:
        """What goes into a statement's values; of libraries' nothing: `os.path` is no `args.path`."""
        found = closure((node for node in ast.walk(statement) if isinstance(node, ast.expr)), self._reaching.of)
        return {node for node in found if self._names.qualified(node) is None}

    def _is_in(self, path: ast.expr, parts: set[ast.expr]) -> bool:
        """Whether a folder's path is among them: the same name, the same text, or written in the same way."""
        keys = set(self._reaching.provenance.keys(path))
        if keys:
            return any(keys.intersection(self._reaching.provenance.keys(part)) for part in parts)
        if isinstance(path, ast.Constant):
            texts = (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
            folder = re.compile(rf"(?<![\w.-]){re.escape(str(path.value).rstrip('/'))}(?![\w.-])")
            return any(folder.search(text) for text in texts)
        wanted = ast.dump(path)
        return any(type(part) is type(path) and ast.dump(part) == wanted for part in parts)
