"""The program's data loaders: every `DataLoader(...)`, and every class that derives from it."""

from __future__ import annotations

import ast

from dp2ddp.analysis.classes import Classes, asks_for_type
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import keyword
from dp2ddp.source.program import ParsedProgram

#: `DataLoader`, and what other packages derive from it.
LOADERS = frozenset(
    "torch.utils.data.DataLoader monai.data.DataLoader torch_geometric.loader.DataLoader "
    "torch_geometric.data.DataLoader timm.data.create_loader fastai.data.load.DataLoader".split()
)
_INIT, _COLLATE = "__init__", "collate_fn"


class Loaders:
    """Finds them by their names alone: which model a loader feeds is not asked.

    Attributes:
        calls: what makes a loader, from outside.
        values: a loader's class that is handed on (`partial(DataLoader, ...)`), or derived from by a class that neither
            begins nor is called by its name: what it makes isn't seen.
        begun: of classes of which one is made by no call that names it, the statement that begins the loader: it is
            sharded there, and not where others of them are made.
    """

    def __init__(self, source: ParsedProgram, names: Names, classes: Classes) -> None:
        self._source, self._names, self._classes = source, names, classes
        self.calls = [call for call in source.calls if self._is_one(call.func, LOADERS)]
        called = {call.func for call in self.calls}
        named = (n for n in source.nodes if isinstance(n, (ast.Name, ast.Attribute)) and n not in called)
        self.values: list[ast.expr] = [node for node in named if self._is_handed_on(node)]
        self.begun: list[ast.stmt] = []
        self._begin(called)

    def _is_one(self, node: ast.expr, kinds: frozenset[str]) -> bool:
        return self._names.qualified(node) in kinds or self._classes.derives(self._classes.definition(node), kinds)

    def _is_handed_on(self, node: ast.Name | ast.Attribute) -> bool:
        above = self._source.parent(node)
        if not isinstance(node.ctx, ast.Load) or isinstance(above, (ast.ClassDef, ast.Attribute)):
            return False
        if self._names.qualified(node) not in LOADERS:
            return False
        is_super = isinstance(above, ast.Call) and self._names.qualified(above.func) == "builtins.super"
        return not is_super and not asks_for_type(self._source, self._names, node)

    def _most_derived(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """The classes below a class from which none derives; itself, where none derives from it."""
        below = self._classes.derived(definition)
        return [each for each in below if not self._classes.derived(each)] or [definition]

    def _begin(self, called: set[ast.expr]) -> None:
        made = {self._classes.definition(each) for each in called}
        for definition in (n for n in self._source.nodes if isinstance(n, ast.ClassDef)):
            base = next((each for each in definition.bases if self._names.qualified(each) in LOADERS), None)
            if base is not None and not made.issuperset(self._most_derived(definition)):
                init = self._classes.method(definition, _INIT)
                calls = [] if init is None else [n for n in ast.walk(init) if isinstance(n, ast.Call)]
                starts = [n for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == _INIT]
                self.begun += [self._source.statement(each) for each in starts[:1]]
                self.values += [base] if not starts else []
                own = {definition, *self._classes.derived(definition)} if starts else set()
                self.calls = [each for each in self.calls if self._classes.definition(each.func) not in own]

    def collates(self, loader: ast.Call) -> bool:
        """Whether it visibly has a `collate_fn`, with which each rank loads whole batches unless `rows=True`: by its
        call, by a dictionary of its file that it may be given, or by its class.
        """
        if self._is_one(loader.func, LOADERS - {"torch.utils.data.DataLoader"}):  # others bring one
            return True
        definition = self._classes.definition(loader.func)
        inside = [*ast.walk(definition)] if isinstance(definition, ast.ClassDef) else []
        given = [keyword(each, _COLLATE) for each in (loader, *(n for n in inside if isinstance(n, ast.Call)))]
        is_set = (isinstance(n, ast.Attribute) and n.attr == _COLLATE and isinstance(n.ctx, ast.Store) for n in inside)
        file = ast.walk(self._source.module(loader)) if any(each.arg is None for each in loader.keywords) else ()
        is_key = (isinstance(n, ast.Constant) and n.value == _COLLATE for n in file)
        return any(is_set) or any(is_key) or any(each is not None and ast.unparse(each) != "None" for each in given)
