"""Models that are wrapped in part: `model.features = nn.DataParallel(model.features)` or `Model(nn.DataParallel(net))`.

The rest of such a model runs on the whole batch, as it did on the first device, so it has to see whole batches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dp2ddp.analysis.names import Names, OwnModule
from dp2ddp.analysis.roles import Class, Function, Group, Instance, Module, Resolver, Role, Table, Wrapped
from dp2ddp.analysis.source import Source, in_order

_KNOWN = "only a part of the model is wrapped"
_PERHAPS = "perhaps only a part of a model is wrapped"
_CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.Starred, ast.keyword)
_COPIES = frozenset({"builtins.list", "builtins.tuple", "builtins.dict", "collections.OrderedDict"})


@dataclass(frozen=True)
class Part:
    """What makes a wrap that of a part.

    Attributes:
        root: the model that the part belongs to, None where the statement doesn't name it.
        why: in a few words.
    """

    root: ast.expr | None
    why: str


class Parts:
    """Tells which wraps are those of parts."""

    def __init__(self, source: Source, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver

    def of(self, call: ast.Call, outer: ast.expr) -> Part | None:
        """The part that `nn.DataParallel(...)` makes; None where a whole model is wrapped.

        Args:
            call: the wrap.
            outer: the wrap with what stands around it and gives the same model, as `.cuda()` does.
        """
        statement = self.source.statement(call)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is outer:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            parts = [self._held_by(self._bases(t)) for t in targets if isinstance(t, (ast.Attribute, ast.Subscript))]
        else:
            parts = [self._handed_on(outer)]
        found = next((part for part in parts if part is not None), None)
        return found or (Part(None, _KNOWN) if call in self._inside_modules else None)

    def _bases(self, target: ast.expr) -> list[ast.expr]:
        """What a target is an attribute or element of, from the outside in: of `a.b.c` first `a`, then `a.b`."""
        bases: list[ast.expr] = []
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
            bases.insert(0, target)
        return bases

    def _held_by(self, bases: list[ast.expr]) -> Part | None:
        if not bases:
            return None
        known = next((base for base in bases if any(map(_is_known, self.resolver.roles(base)))), None)
        if known is not None:
            return Part(known if _is_plain(known) else None, _KNOWN)
        # The runtime sees whether it is a module.
        return Part(bases[-1] if _is_plain(bases[-1]) else None, _PERHAPS) if self._may_be_module(bases[-1]) else None

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

    def _handed_on(self, outer: ast.expr) -> Part | None:
        """The part that the call makes to which the wrapped model is given."""
        node: ast.AST = outer
        above = self.source.parent(node)
        while isinstance(above, _CONTAINERS) or (isinstance(above, ast.Call) and self._copies(above)):
            node, above = above, self.source.parent(above)
        if not isinstance(above, ast.Call) or above.func is node:
            return None
        path = self.names.qualified(above.func) or ""
        if path == "builtins.setattr":
            return self._held_by([above.args[0]])
        if _is_module_path(path):
            return Part(None, _KNOWN)
        if path.startswith("builtins."):
            return None
        if isinstance(above.func, ast.Attribute) and above.func.attr in ("add_module", "register_module"):
            return self._held_by([above.func.value])
        return self._built(above)

    def _built(self, call: ast.Call) -> Part | None:
        roles = self.resolver.roles(call.func)
        classes = [role.definition for role in roles if isinstance(role, Class)]
        if any(map(self.resolver.classes.is_module, classes)):
            return Part(None, _KNOWN)
        if classes and not any(map(self._has_strange_base, classes)):
            return None
        if any(isinstance(role, Function) for role in roles):
            return None
        name = self.source.brief(call.func, 40)
        return Part(
            None, f"the wrapped model is given to `{name}`, which isn't known and may make it a part of another"
        )

    def _copies(self, call: ast.Call) -> bool:
        return self.names.qualified(call.func) in _COPIES

    @cached_property
    def _inside_modules(self) -> set[ast.Call]:
        """The wraps that reach an attribute of a module, or the call that makes one, by way of other names."""
        found: set[ast.Call] = set()
        for node in self.source.nodes:
            if isinstance(node, ast.Assign) and not self._is_parameter_of_init(node.value):
                held = (t for t in node.targets if isinstance(t, (ast.Attribute, ast.Subscript)))
                if any(self.resolver.holds(base, Module) for target in held for base in self._bases(target)):
                    found.update(self._sites_before(node, node.value))
            elif isinstance(node, ast.Call) and self._makes_module(node):
                for value in (*node.args, *(k.value for k in node.keywords)):
                    found.update(self._sites_before(node, value))
        return found

    def _is_parameter_of_init(self, node: ast.expr) -> bool:
        """Whether a value is what the constructor was given: then the call that constructs tells more."""
        function = self.source.function(node)
        if not isinstance(node, ast.Name) or function is None or function.name != "__init__":
            return False
        arguments = function.args
        return any(a.arg == node.id for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))

    def _sites_before(self, node: ast.AST, value: ast.expr) -> Iterator[ast.Call]:
        """The wraps that `value` can hold: roles don't know that `net = Net(net)` comes before `net` is wrapped."""
        for site in _sites(self.resolver.roles(value)):
            later = in_order([site, node]) == [node, site]
            if not (later and self.source.function(site) is self.source.function(node)):
                yield site

    def _makes_module(self, call: ast.Call) -> bool:
        path = self.names.qualified(call.func)
        if path is not None:
            return _is_module_path(path)
        classes = (role.definition for role in self.resolver.roles(call.func) if isinstance(role, Class))
        return any(map(self.resolver.classes.is_module, classes))


def _is_known(role: Role) -> bool:
    return isinstance(role, Wrapped) or (isinstance(role, Module) and not role.presumed)


def _sites(roles: frozenset[Role]) -> Iterator[ast.Call]:
    """The wraps among roles, those in lists and dictionaries, too."""
    for role in roles:
        if isinstance(role, Wrapped):
            yield role.site
        elif isinstance(role, Group):
            yield from (site for element in role.elements for site in _sites(element))
        elif isinstance(role, Table):
            yield from _sites(role.values)


def _is_module_path(path: str) -> bool:
    """Whether a library's callable makes a module of what it is given."""
    if path.startswith("torch.nn."):
        return path.rsplit(".", 1)[-1][0].isupper() and path != "torch.nn.DataParallel"
    return path.startswith(("torchvision.models.", "timm."))


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression may be written down a second time: it only looks things up."""
    return not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(node))
