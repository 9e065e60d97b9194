"""Moving roles through the script until nothing changes: assignment, unpacking, arguments, returns, loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from dp2ddp.analysis.roles.classes import is_static
from dp2ddp.analysis.roles.kinds import (
    Class,
    Function,
    Group,
    Instance,
    Loader,
    LoaderIterator,
    Module,
    Role,
    Table,
    Wrapped,
)
from dp2ddp.analysis.roles.values import Values
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import same
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

# Nodes over which roles move.
_FLOWING = (
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Return, ast.Call, ast.withitem),
    *(ast.For, ast.comprehension, *FUNCTIONS),
)
# Roles that are followed into objects that nobody knows, and out of them by the attribute's name.
_STORED = (Wrapped, Loader, LoaderIterator)
_ROUNDS = 20  # each round moves a role over at least one more assignment; real scripts settle in three to five


class Resolver(Values):
    """The roles of a script's expressions, with all that its names ever hold."""

    def __init__(self, source: ParsedProgram, names: Names) -> None:
        super().__init__(source, names)
        self._settle()
        self._settled = True

    def arguments(self, call: ast.Call) -> Iterator[tuple[FunctionNode, str, ast.expr]]:
        """What a call gives to the parameters of the script's functions; of `*args` and `**kwargs` the whole."""
        for function in self.functions_called(call):
            arguments = function.definition.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            if function.owner is not None and names and not is_static(function.definition):
                names = names[1:]
            left = [*names, *(a.arg for a in arguments.kwonlyargs)]
            given: dict[str, ast.expr] = {k.arg: k.value for k in call.keywords if k.arg in left}
            starred = next((a for a in call.args if isinstance(a, ast.Starred)), None)
            plain = call.args if starred is None else call.args[: call.args.index(starred)]
            given.update(zip(names, plain))
            rest = starred or next((k.value for k in call.keywords if k.arg is None), None)
            if rest is not None:
                given.update((name, rest) for name in left if name not in given)
            yield from ((function.definition, name, value) for name, value in given.items())

    def given(self, call: ast.Call, function: FunctionNode, name: str) -> ast.expr | None:
        """What a call of a function gives to a parameter, or else its default; None for what can't be told."""
        if any(each.arg is None for each in call.keywords):
            return None
        given = {parameter: value for callee, parameter, value in self.arguments(call) if callee is function}
        value = given.get(name) or dict(defaults(function.args)).get(name)
        return None if isinstance(value, ast.Starred) else value

    def _settle(self) -> None:
        self._bind_definitions()
        flowing = [node for node in self.source.nodes if isinstance(node, _FLOWING)]
        for _ in range(_ROUNDS):
            before = self.bindings.changes
            for node in flowing:
                self._flow(node)
            if self.bindings.changes == before:
                return

    def _bind_definitions(self) -> None:
        for definition in self.source.nodes:
            if isinstance(definition, ast.ClassDef):
                self.bindings.bind_variable(definition, definition.name, frozenset({Class(definition)}))
            elif isinstance(definition, FUNCTIONS) and not isinstance(self.source.parent(definition), ast.ClassDef):
                self.bindings.bind_variable(definition, definition.name, frozenset({Function(definition)}))

    def _flow(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.Return) and node.value is not None:
            function = self.source.function(node)
            if function is not None:
                self.bindings.bind_return(function, self.roles(node.value))
        elif isinstance(node, ast.Call):
            self._pass_arguments(node)
            self._append(node)
            self._narrow(node)
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._bind(node.target, self.elements(node.iter))
        elif isinstance(node, FUNCTIONS):
            for name, value in defaults(node.args):
                self.bindings.bind_parameter(node, name, self.roles(value))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)

    def _append(self, call: ast.Call) -> None:
        """`loaders.append(loader)`, `parser.set_defaults(func=fit)`: the list, or what is parsed, holds it then."""
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "set_defaults":
            functions = (role for k in call.keywords for role in self.roles(k.value) if isinstance(role, Function))
            self.bindings.bind_defaults(frozenset(functions))
        if isinstance(func, ast.Attribute) and func.attr in ("append", "insert") and call.args:
            roles = self.roles(call.args[-1])
            if roles and isinstance(func.value, (ast.Name, ast.Attribute)):
                self._bind(func.value, frozenset({Table(roles)}))

    def _narrow(self, call: ast.Call) -> None:
        """`issubclass(cls, Base)`: what a loop over a module finds is one of the classes that derive from it."""
        if self.names.qualified(call.func) == "builtins.issubclass" and len(call.args) == 2:
            bases = [role.definition for role in self.roles(call.args[1]) if isinstance(role, Class)]
            derived = {one for base in bases for one in self.classes.derived(base)}
            self._bind(call.args[0], frozenset(map(Class, derived)))

    def _pass_arguments(self, call: ast.Call) -> None:
        whole = [k.value for k in call.keywords if k.arg is None]
        for function, name, value in self.arguments(call):
            if not isinstance(value, ast.Starred) and value not in whole:
                self.bindings.bind_parameter(function, name, self.roles(value))
        for role in self.roles(call.func):
            if isinstance(role, Class) and not self.classes.methods(role.definition, "__init__"):
                self._fill_fields(role.definition, call)

    def _fill_fields(self, definition: ast.ClassDef, call: ast.Call) -> None:
        """The fields of a data class, or of a named tuple, hold what they are given."""
        fields = [
            n.target.id for n in definition.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        ]
        given = [*zip(fields, call.args), *((each.arg, each.value) for each in call.keywords if each.arg in fields)]
        for name, value in given:
            self.bindings.bind_attribute(definition, name, self.roles(value))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            if len(target.elts) == len(value.elts):
                for one, its_value in zip(target.elts, value.elts):
                    self._assign(one, its_value)
            return
        roles = self.roles(value)
        if not roles and isinstance(target, (ast.Tuple, ast.List)):
            roles = frozenset({Table(self.elements(value))})  # `one, other = nets.values()`
        self._bind(target, roles)

    def _bind(self, target: ast.expr, roles: frozenset[Role]) -> None:
        if isinstance(target, ast.Name):
            self.bindings.bind_variable(target, target.id, roles)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, roles)
        elif isinstance(target, ast.Subscript):
            held = self.roles(target.value)
            if roles and (not held or any(isinstance(role, (Group, Table)) for role in held)):
                self._bind(target.value, frozenset({Table(roles)}))
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, roles)

    def _bind_attribute(self, target: ast.Attribute, roles: frozenset[Role]) -> None:
        owners = self.roles(target.value)
        if not owners and any(isinstance(r, Wrapped) and _replaces(target, r.site) for r in roles):
            self._bind(target.value, frozenset({Module(presumed=True)}))
        elif not owners:
            self.bindings.bind_stored(target.attr, frozenset(r for r in roles if isinstance(r, _STORED)))
        for owner in owners:
            if isinstance(owner, (Instance, Module)) and owner.definition is not None:
                self.bindings.bind_attribute(owner.definition, target.attr, roles)

    def _unpack(self, targets: Sequence[ast.expr], roles: frozenset[Role]) -> None:
        for role in roles:
            if isinstance(role, Group) and len(role.elements) == len(targets):
                for one, its_roles in zip(targets, role.elements):
                    self._bind(one, its_roles)
            elif isinstance(role, Table):
                for one in targets:
                    self._bind(one, role.values)


def _replaces(target: ast.expr, site: ast.Call) -> bool:
    """Whether a wrap takes the place of what it wraps."""
    return bool(site.args) and same(target, site.args[0])


def defaults(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """The parameters that have a default, with it."""
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    found = list(zip(reversed(positional), reversed(arguments.defaults)))
    return found + [(a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d is not None]
