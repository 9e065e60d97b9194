"""The models whose parts are wrapped: `model.features = nn.DataParallel(model.features)`.

The rest of such a model runs on the whole batch, as it did on the first device; the runtime is told which model it is.
"""

from __future__ import annotations

import ast

from dp2ddp.analysis.roles import Class, Instance, Module, Resolver, Role, Wrapped
from dp2ddp.source.names import Names, OwnModule
from dp2ddp.source.program import ParsedProgram

_CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.Starred, ast.keyword)
_COPIES = frozenset({"builtins.list", "builtins.tuple", "builtins.dict", "collections.OrderedDict"})


class Parts:
    """Tells of which models wraps wrap a part."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver

    def root(self, call: ast.Call, outer: ast.expr) -> ast.expr | None:
        """The model a part of which `nn.DataParallel(...)` wraps; None where it wraps a whole one, or none is named.

        Args:
            call: the wrap.
            outer: the wrap with what stands around it and gives the same model, as `.cuda()` does.
        """
        statement = self.source.statement(call)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is outer:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            held = [self._held_by(self._bases(t)) for t in targets if isinstance(t, (ast.Attribute, ast.Subscript))]
            return next((root for root in held if root is not None), None)
        return self._handed_on(outer)

    def _bases(self, target: ast.expr) -> list[ast.expr]:
        """What a target is an attribute or element of, from the outside in: of `a.b.c` first `a`, then `a.b`."""
        bases: list[ast.expr] = []
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
            bases.insert(0, target)
        return bases

    def _held_by(self, bases: list[ast.expr]) -> ast.expr | None:
        known = next((base for base in bases if any(map(_is_known, self.resolver.roles(base)))), None)
        if known is None and bases and self._may_be_module(bases[-1]):
            known = bases[-1]  # the runtime sees whether it is a module
        return known if known is not None and _is_plain(known) else None

    def _may_be_module(self, node: ast.expr) -> bool:
        roles = self.resolver.roles(node)
        if roles:
            strange = (isinstance(role, Instance) and self._has_strange_base(role.definition) for role in roles)
            return any(isinstance(role, Module) for role in roles) or any(strange)
        return not isinstance(self.names.target(node), OwnModule)

    def _has_strange_base(self, definition: ast.ClassDef) -> bool:
        """Whether a class derives from one that isn't known, which may be a module."""
        for owner in self.resolver.classes.lineage(definition):
            for base in owner.bases:
                path = self.names.qualified(base) or ""
                known = path.startswith(("builtins.", "abc.", "typing.")) or self.resolver.holds(base, Class)
                if not known:
                    return True
        return False

    def _handed_on(self, outer: ast.expr) -> ast.expr | None:
        """The model to which a call adds the wrapped part."""
        node: ast.AST = outer
        above = self.source.parent(node)
        while isinstance(above, _CONTAINERS) or (isinstance(above, ast.Call) and self._copies(above)):
            node, above = above, self.source.parent(above)
        if not isinstance(above, ast.Call) or above.func is node:
            return None
        if self.names.qualified(above.func) == "builtins.setattr":
            return self._held_by([above.args[0]])
        if isinstance(above.func, ast.Attribute) and above.func.attr in ("add_module", "register_module"):
            return self._held_by([above.func.value])
        return None

    def _copies(self, call: ast.Call) -> bool:
        return self.names.qualified(call.func) in _COPIES


def _is_known(role: Role) -> bool:
    return isinstance(role, Wrapped) or (isinstance(role, Module) and not role.presumed)


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression may be written down a second time: it only looks things up."""
    return not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(node))
