"""Values that only rank 0 uses: they are shown, or name what is written. What other ranks make of them goes nowhere."""

from __future__ import annotations

import ast
import datetime
import pathlib
from functools import cached_property

from dp2ddp.analysis.dataflow.reaching import ReachingDefinitions
from dp2ddp.analysis.files.writers import Writers
from dp2ddp.analysis.ranks.display import EFFECTS, PLAIN, SHOWING
from dp2ddp.source.nodes import argument, given_to

_FOR_RANK_0 = frozenset("writes changes saves asks reports shows runs".split())
_TAKING_TEXT = ("logging.", "tqdm.", "builtins.open", "io.open")
_QUESTIONS = frozenset({"exists", "is_file", "is_dir"})
_HANDING_ON = (ast.BinOp, ast.BoolOp, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List, ast.Dict, ast.Starred)
_NAMES = (ast.Name, ast.Attribute, ast.Subscript)


class RankZeroUses:
    """Follows a value forward, to all that is made of it. What isn't known may be anybody's."""

    def __init__(self, reaching: ReachingDefinitions, writers: Writers) -> None:
        self.source = reaching.source
        self._reaching = reaching
        self._writers = writers
        self._names = writers.names
        self._catalogue = writers.catalogue
        self._called = writers.resolver.functions_called

    def only(self, value: ast.expr) -> bool:
        """Whether it is used in no other way."""
        found, todo = {value}, [value]
        while todo:
            node = todo.pop()
            made = self._made_of(node)
            if made is None:
                return False
            todo += [each for each in (*made, *self._holding.get(node, ())) if each not in found]
            found.update(todo)
        return True

    def _made_of(self, node: ast.expr) -> list[ast.expr] | None:
        """What an expression is a part of, but for names; None where it is used in a way that isn't known."""
        above = self.source.parent(node)
        if isinstance(above, ast.keyword):
            above = self.source.parent(above)
        if isinstance(above, ast.Attribute):
            outer = self.source.parent(above)
            is_method = isinstance(outer, ast.Call) and outer.func is above
            return self._of_call(outer) if is_method else [above]  # type: ignore[arg-type]
        if isinstance(above, ast.Call):
            return None if node is above.func else self._of_call(above)
        if isinstance(above, _HANDING_ON):
            return [above]
        if isinstance(above, ast.Subscript):
            return [above] if node is above.value else None
        if isinstance(above, ast.IfExp):
            return None if node is above.test else [above]
        if isinstance(above, ast.Assign):
            return [] if all(map(self._is_followed, above.targets)) else None
        return [] if isinstance(above, (ast.Expr, ast.Return, ast.withitem)) else None

    def _of_call(self, call: ast.Call) -> list[ast.expr] | None:
        """What a call makes of what it is given."""
        if self._called(call) or self._is_for_rank_0(call):
            return []
        path, method = self._names.qualified(call.func), getattr(call.func, "attr", "")
        if path is not None:
            # (`glob` puts what it is given in front of the names.)
            plain = path.startswith((*PLAIN, "os.path.", "pathlib.")) and path not in EFFECTS
            return [call] if plain or self._catalogue.does(path, "lists") else None
        if method in _QUESTIONS or method == "add_argument":
            return []
        plain = any(hasattr(kind, method) for kind in (str, datetime.datetime, pathlib.PurePath))
        return [call] if plain else None

    def _is_for_rank_0(self, call: ast.Call) -> bool:
        """Whether rank 0 alone does a call, or answers it, or the other ranks' goes nowhere."""
        path = self._names.qualified(call.func)
        if path != "subprocess.Popen" and any(map(self._is_written_handle, given_to(call))):
            return True
        if path is None:
            made = self._writers.packages(call.func.value) if isinstance(call.func, ast.Attribute) else set()
            known = call in self._writers.of_rank_0 or self._writers.of(call) is not None
            return known or (bool(made) and all(each.startswith(_TAKING_TEXT) for each in made))
        function = self._catalogue.of(path)
        if path.startswith(SHOWING) or function is None:
            return path.startswith(SHOWING)
        return self._only_writes(call) or (function.does in _FOR_RANK_0 and path != "subprocess.Popen")

    def _only_writes(self, call: ast.Call) -> bool:
        """Whether a call opens a file to write it."""
        function = self._catalogue.of(self._names.qualified(call.func))
        mode = argument(call, function.mode, "mode") if function is not None and function.does == "opens" else None
        text = mode.value if isinstance(mode, ast.Constant) else None
        return isinstance(text, str) and "+" not in text and self._writers.of(call) is not None

    def _is_written_handle(self, given: ast.expr) -> bool:
        """Whether an argument is such a file: what a call is given beside goes there (`json.dump(x, file)`)."""
        makers = self._writers.makers(given)
        return bool(makers) and all(map(self._only_writes, makers))

    def _is_followed(self, target: ast.expr) -> bool:
        """Whether all uses of what is assigned are seen: not where its object is given to who knows whom."""
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(map(self._is_followed, target.elts))
        if isinstance(target, ast.Subscript):
            return isinstance(target.slice, ast.Constant) and self._stays_here(target.value)
        return isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and self._stays_here(target.value))

    def _stays_here(self, thing: ast.expr) -> bool:
        keys = self._reaching.provenance.keys
        wanted = set(keys(thing))
        takers = [self._taker(n) for n in self._loads if wanted.intersection(keys(n))]
        return bool(wanted) and all(call is None or self._of_call(call) is not None for call in takers)

    def _taker(self, node: ast.expr) -> ast.Call | None:
        above = self.source.parent(node)
        if isinstance(above, (ast.keyword, ast.Starred)):
            above = self.source.parent(above)
        return above if isinstance(above, ast.Call) and node is not above.func else None

    @cached_property
    def _loads(self) -> list[ast.expr]:
        return [n for n in self.source.nodes if isinstance(n, _NAMES) and isinstance(n.ctx, ast.Load)]

    @cached_property
    def _holding(self) -> dict[ast.expr, list[ast.expr]]:
        """The names, attributes, items and calls of the script's own functions that can be a value."""
        found: dict[ast.expr, list[ast.expr]] = {}
        for node in self._loads:
            for value in self._reaching.held(node):
                found.setdefault(value, []).append(node)
        for call in self.source.calls:
            for value in self._reaching.given_back(call):
                found.setdefault(value, []).append(call)
        return found
