"""The roles that names play: which hold the wrapped model, the optimizer, a loader, a loss.

Roles start at calls (`nn.DataParallel(...)`, `DataLoader(...)`, `optim.SGD(...)`) and move through assignment,
unpacking, `self.` attributes, parameters and returns, until nothing changes. Flow decides, never spelling. The
analysis is flow-insensitive: a name's roles are all that it ever holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union

from dp2ddp.analysis.names import Names, Own, OwnModule
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode, Source, same


@dataclass(frozen=True)
class Wrapped:
    """A model in `nn.DataParallel`, by the call that wraps it."""

    site: ast.Call


@dataclass(frozen=True)
class Wrapper:
    """`nn.DataParallel` itself, or what wraps a model as it does."""


@dataclass(frozen=True)
class Module:
    """A plain `nn.Module`: a class of this script where `definition` is known.

    `presumed` where only this speaks for it: the script wraps a part of it in place.
    """

    definition: ast.ClassDef | None = None
    presumed: bool = False


@dataclass(frozen=True)
class Optimizer:
    """A `torch.optim` optimizer or scheduler."""


@dataclass(frozen=True)
class WrappedOptimizer:
    """An optimizer that the script put into `nn.DataParallel`."""

    site: ast.Call


@dataclass(frozen=True)
class Loader:
    """A `DataLoader`, by the call that builds it."""

    site: ast.Call


@dataclass(frozen=True)
class LoaderIterator:
    """What `iter(loader)` gives."""

    site: ast.Call


@dataclass(frozen=True)
class Criterion:
    """A loss of `torch.nn`, by the call that builds it."""

    path: str
    site: ast.Call


@dataclass(frozen=True)
class Scaler:
    """A `GradScaler`."""


@dataclass(frozen=True)
class Function:
    """A function or method of this script; `owner` is the class of a bound method."""

    definition: FunctionNode
    owner: ast.ClassDef | None = None


@dataclass(frozen=True)
class Class:
    """A class of this script."""

    definition: ast.ClassDef


@dataclass(frozen=True)
class Instance:
    """An object of a class of this script that is no `nn.Module`."""

    definition: ast.ClassDef


@dataclass(frozen=True)
class Group:
    """A tuple or list whose elements' roles are known."""

    elements: tuple[frozenset[Role], ...]


@dataclass(frozen=True)
class Table:
    """A dictionary, by the roles of all its values."""

    values: frozenset[Role]


Role = Union[
    Wrapped,
    Wrapper,
    Module,
    Optimizer,
    WrappedOptimizer,
    Loader,
    LoaderIterator,
    Criterion,
    Scaler,
    Function,
    Class,
    Instance,
    Group,
    Table,
]
Roles = frozenset  # of Role
NONE: frozenset[Role] = frozenset()

# Nodes over which roles move.
_FLOWING = (
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Return, ast.Call, ast.withitem),
    *(ast.For, ast.comprehension, *FUNCTIONS),
)
_DEEPEST = 3  # groups and tables in each other
# Methods that give back the object they were called on.
SAME_OBJECT = frozenset({"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "type", "requires_grad_"})
# Calls that draw from the loaders that they are given.
DRAWING = frozenset(
    "builtins.iter builtins.enumerate builtins.zip builtins.list builtins.tuple builtins.reversed builtins.map "
    "itertools.islice itertools.cycle itertools.chain".split()
)
# Calls that hand on their first argument's elements.
PROGRESS_BARS = frozenset(
    {"tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.tqdm_notebook", "rich.progress.track"}
)


class Resolver:
    """Computes the roles of a script's names, once, to a fixpoint."""

    _ROUNDS = 20  # each round moves a role over at least one more assignment; real scripts settle in three to five

    def __init__(self, source: Source, names: Names) -> None:
        self.source = source
        self.names = names
        self._variables: dict[tuple[ast.AST, str], frozenset[Role]] = {}
        self._attributes: dict[tuple[ast.ClassDef, str], frozenset[Role]] = {}
        self._returns: dict[FunctionNode, frozenset[Role]] = {}
        self._module_classes: dict[ast.ClassDef, bool] = {}
        self._lineages: dict[ast.ClassDef, list[ast.ClassDef]] = {}
        self._methods: dict[ast.ClassDef, dict[str, FunctionNode]] = {}
        self._selves: dict[FunctionNode, tuple[str | None, frozenset[Role]]] = {}
        self._subclasses: dict[ast.ClassDef, list[ast.ClassDef]] | None = None
        self._changed = False
        self._globals = self._declared_globals()
        self._final: dict[ast.AST, frozenset[Role]] = {}
        self._called: dict[ast.Call, list[Function]] = {}
        self._settled = False
        self._settle()
        self._settled = True

    def roles(self, node: ast.AST) -> frozenset[Role]:
        """The roles that an expression can play."""
        found = self._final.get(node)
        if found is None:
            found = self._found(node)
            if self._settled:
                self._final[node] = found
        return found

    def _found(self, node: ast.AST) -> frozenset[Role]:
        handler = getattr(self, f"_of_{type(node).__name__}", None)
        found = NONE if handler is None else handler(node)
        is_class = isinstance(node, (ast.Name, ast.Attribute)) and self.names.qualified(node) == "torch.nn.DataParallel"
        return found | {Wrapper()} if is_class else found

    def holds(self, node: ast.AST, *kinds: type) -> bool:
        """Whether an expression can play one of the given roles."""
        return any(isinstance(role, kinds) for role in self.roles(node))

    def functions_called(self, call: ast.Call) -> list[Function]:
        """The functions and methods of this script that a call can reach (a class: its `__init__`)."""
        known = self._called.get(call)
        if known is not None:
            return known
        found = [role for role in self.roles(call.func) if isinstance(role, Function)]
        for role in self.roles(call.func):
            if isinstance(role, Class):
                found.extend(self._method(role.definition, "__init__"))
        found.sort(key=lambda function: function.definition.lineno)
        if self._settled:
            self._called[call] = found
        return found

    def is_module_class(self, definition: ast.ClassDef) -> bool:
        """Whether a class of this script derives from `torch.nn.Module`."""
        if definition not in self._module_classes:
            bases = (base for owner in self.lineage(definition) for base in owner.bases)
            self._module_classes[definition] = any(_is_module_path(self.names.qualified(base)) for base in bases)
        return self._module_classes[definition]

    def is_wrapper_class(self, definition: ast.ClassDef) -> bool:
        """Whether a class of this script derives from `nn.DataParallel`."""
        bases = (base for owner in self.lineage(definition) for base in owner.bases)
        return any(self.names.qualified(base) == "torch.nn.DataParallel" for base in bases)

    # -- fixpoint --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        for definition in self.source.nodes:
            if isinstance(definition, ast.ClassDef):
                self._bind_variable(definition, definition.name, frozenset({Class(definition)}))
            elif isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)) and not self._is_method(definition):
                self._bind_variable(definition, definition.name, frozenset({Function(definition)}))
        flowing = [node for node in self.source.nodes if isinstance(node, _FLOWING)]
        for _ in range(self._ROUNDS):
            self._changed = False
            for node in flowing:
                self._flow(node)
            if not self._changed:
                return

    def _flow(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.Return) and node.value is not None:
            function = self.source.function(node)
            if function is not None:
                self._returns[function] = self._joined(self._returns.get(function, NONE), self.roles(node.value))
        elif isinstance(node, ast.Call):
            self._pass_arguments(node)
            self._append(node)
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._bind(node.target, self._elements(node.iter))
        elif isinstance(node, FUNCTIONS):
            self._bind_defaults(node)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)

    def _bind_defaults(self, function: FunctionNode) -> None:
        for name, value in defaults(function.args):
            key = (function, name)
            self._variables[key] = self._joined(self._variables.get(key, NONE), self.roles(value))

    def _append(self, call: ast.Call) -> None:
        """`loaders.append(loader)`: the list holds it from then on."""
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("append", "insert") and call.args:
            roles = self.roles(call.args[-1])
            if roles and isinstance(func.value, (ast.Name, ast.Attribute)):
                self._bind(func.value, frozenset({Table(roles)}))

    def _elements(self, node: ast.expr) -> frozenset[Role]:
        """The roles of what a loop over lists, tuples or dictionaries gets."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            values = self._values(node.func.value)
            if node.func.attr == "items":
                return frozenset({Group((NONE, values))}) if values else NONE
            return values if node.func.attr == "values" else NONE
        path = self.names.qualified(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and path == "builtins.zip":
            return frozenset({Group(tuple(map(self._elements, node.args)))})
        if isinstance(node, ast.Call) and path == "builtins.enumerate" and node.args:
            return frozenset({Group((NONE, self._elements(node.args[0])))})
        return self._values(node)

    def _values(self, node: ast.expr) -> frozenset[Role]:
        """The roles of all that a list, tuple or dictionary holds."""
        found: frozenset[Role] = NONE
        for role in self.roles(node):
            if isinstance(role, Table):
                found |= role.values
            elif isinstance(role, Group):
                found = found.union(*role.elements)
        return found

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            if len(target.elts) == len(value.elts):
                for one, its_value in zip(target.elts, value.elts):
                    self._assign(one, its_value)
            return
        self._bind(target, self.roles(value))

    def _bind(self, target: ast.expr, roles: frozenset[Role]) -> None:
        if isinstance(target, ast.Name):
            self._bind_variable(target, target.id, roles)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, roles)
        elif isinstance(target, ast.Subscript):
            if roles and any(isinstance(role, (Group, Table)) for role in self.roles(target.value)):
                self._bind(target.value, frozenset({Table(roles)}))
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, roles)

    def _bind_attribute(self, target: ast.Attribute, roles: frozenset[Role]) -> None:
        owners = self.roles(target.value)
        if not owners and any(isinstance(r, Wrapped) and _replaces(target, r.site) for r in roles):
            self._bind(target.value, frozenset({Module(presumed=True)}))
        for owner in owners:
            if isinstance(owner, (Instance, Module)) and owner.definition is not None:
                key = (owner.definition, target.attr)
                self._attributes[key] = self._joined(self._attributes.get(key, NONE), roles)

    def _unpack(self, targets: Sequence[ast.expr], roles: frozenset[Role]) -> None:
        for role in roles:
            if isinstance(role, Group) and len(role.elements) == len(targets):
                for one, its_roles in zip(targets, role.elements):
                    self._bind(one, its_roles)
            elif isinstance(role, Table):
                for one in targets:
                    self._bind(one, role.values)

    def _bind_variable(self, node: ast.AST, name: str, roles: frozenset[Role]) -> None:
        scope: ast.AST = self.source.scope(node)
        if name in self._globals.get(scope, ()):
            scope = self.source.module(node)
        key = (scope, name)
        self._variables[key] = self._joined(self._variables.get(key, NONE), roles)

    def _joined(self, old: frozenset[Role], new: frozenset[Role]) -> frozenset[Role]:
        if new <= old:
            return old
        joined = _merged(old | new)
        self._changed |= joined != old
        return joined

    def arguments(self, call: ast.Call) -> Iterator[tuple[FunctionNode, str, ast.expr]]:
        """What a call gives to the parameters of the script's functions; of `*args` and `**kwargs` the whole."""
        for function in self.functions_called(call):
            arguments = function.definition.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            if function.owner is not None and names and not self._is_static(function.definition):
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

    def _pass_arguments(self, call: ast.Call) -> None:
        whole = [k.value for k in call.keywords if k.arg is None]
        for function, name, value in self.arguments(call):
            if not isinstance(value, ast.Starred) and value not in whole:
                key = (function, name)
                self._variables[key] = self._joined(self._variables.get(key, NONE), self.roles(value))

    def variable(self, node: ast.Name) -> tuple[ast.AST, str] | None:
        """The scope in which a name is known, and the name; None for one that no role was ever seen of."""
        scope: ast.AST | None = self.source.scope(node)
        first = True
        while scope is not None:
            # A class body's names are not seen from its methods.
            if (first or not isinstance(scope, ast.ClassDef)) and (scope, node.id) in self._variables:
                return scope, node.id
            first = False
            scope = None if isinstance(scope, ast.Module) else self.source.scope(scope)
        return None

    def _declared_globals(self) -> dict[ast.AST, set[str]]:
        declared: dict[ast.AST, set[str]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Global):
                declared.setdefault(self.source.scope(node), set()).update(node.names)
        return declared

    # -- expressions -----------------------------------------------------------------------------------------------

    def _of_Name(self, node: ast.Name) -> frozenset[Role]:  # noqa: N802 (named after the node)
        found = self._self_role(node)
        if found:
            return found
        key = self.variable(node)
        return self._imported(node) | (NONE if key is None else self._variables[key])

    def _imported(self, node: ast.expr) -> frozenset[Role]:
        """The roles of what an expression names in another module of the program."""
        target = self.names.target(node)
        return self._variables.get((target.module, target.name), NONE) if isinstance(target, Own) else NONE

    def _self_role(self, node: ast.Name) -> frozenset[Role]:
        function = self.source.function(node)
        while function is not None:
            found = self._selves.get(function)
            if found is None:
                found = self._selves[function] = self._first_parameter(function)
            if found[0] == node.id:
                return found[1]
            function = self.source.function(function)
        return NONE

    def _first_parameter(self, function: FunctionNode) -> tuple[str | None, frozenset[Role]]:
        """The name of a method's `self`, and what it is: an object of the class, or of one that derives from it."""
        owner = self.source.parent(function)
        parameters = [*function.args.posonlyargs, *function.args.args]
        if not isinstance(owner, ast.ClassDef) or self._is_static(function) or not parameters:
            return None, NONE
        return parameters[0].arg, frozenset(map(self._object_of, [owner, *self._derived(owner)]))

    def _of_Attribute(self, node: ast.Attribute) -> frozenset[Role]:  # noqa: N802
        found: set[Role] = set(self._imported(node))
        for base in self.roles(node.value):
            if isinstance(base, (Wrapped, WrappedOptimizer)) and node.attr == "module":
                found |= self.inner(base)
            elif isinstance(base, (Instance, Module)) and base.definition is not None:
                for owner in self.lineage(base.definition):
                    found |= self._attributes.get((owner, node.attr), NONE) | self._in_class(owner, node.attr)
                for method in self._method(base.definition, node.attr):
                    found |= self._returns.get(method.definition, NONE) if _is_property(method) else {method}
            elif isinstance(base, Class):
                found = found.union(*(self._in_class(owner, node.attr) for owner in self.lineage(base.definition)))
        return frozenset(found)

    def _in_class(self, definition: ast.ClassDef, name: str) -> frozenset[Role]:
        """The roles of what a class body binds, but for its methods, which are bound to the object."""
        return frozenset(r for r in self._variables.get((definition, name), NONE) if not isinstance(r, Function))

    def inner(self, role: Wrapped | WrappedOptimizer) -> frozenset[Role]:
        """What stands inside a `DataParallel`."""
        if isinstance(role, WrappedOptimizer):
            return frozenset({Optimizer()})
        inside = self.roles(role.site.args[0]) if role.site.args else NONE
        modules = frozenset(r for r in inside if isinstance(r, Module))
        return modules or frozenset({Module()})

    def _of_IfExp(self, node: ast.IfExp) -> frozenset[Role]:  # noqa: N802
        return self.roles(node.body) | self.roles(node.orelse)

    def _of_BoolOp(self, node: ast.BoolOp) -> frozenset[Role]:  # noqa: N802
        return frozenset().union(*(self.roles(v) for v in node.values))

    def _of_NamedExpr(self, node: ast.NamedExpr) -> frozenset[Role]:  # noqa: N802
        return self.roles(node.value)

    def _of_Tuple(self, node: ast.Tuple) -> frozenset[Role]:  # noqa: N802
        if any(isinstance(e, ast.Starred) for e in node.elts) or len(node.elts) > 20:
            return NONE
        return frozenset({Group(tuple(self.roles(e) for e in node.elts))})

    def _of_List(self, node: ast.List) -> frozenset[Role]:  # noqa: N802
        return self._of_Tuple(node)  # type: ignore[arg-type]

    def _of_Dict(self, node: ast.Dict) -> frozenset[Role]:  # noqa: N802
        return frozenset({Table(frozenset().union(*(self.roles(v) for v in node.values)))})

    def _of_ListComp(self, node: ast.ListComp) -> frozenset[Role]:  # noqa: N802
        return frozenset({Table(self.roles(node.elt))})

    def _of_DictComp(self, node: ast.DictComp) -> frozenset[Role]:  # noqa: N802
        return frozenset({Table(self.roles(node.value))})

    def _of_Lambda(self, node: ast.Lambda) -> frozenset[Role]:  # noqa: N802
        return frozenset({Wrapper()}) if self.holds(node.body, Wrapped) else NONE

    def _of_Subscript(self, node: ast.Subscript) -> frozenset[Role]:  # noqa: N802
        if isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
            return self._member_of(node.value.value)
        found: frozenset[Role] = NONE
        for role in self.roles(node.value):
            if isinstance(role, Table):
                found |= role.values
        if not (isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)):
            return found
        for role in self.roles(node.value):
            if isinstance(role, Group) and -len(role.elements) <= node.slice.value < len(role.elements):
                found |= role.elements[node.slice.value]
        return found

    def _of_Call(self, node: ast.Call) -> frozenset[Role]:  # noqa: N802
        path = self.names.qualified(node.func)
        if path == "builtins.super":
            return self._super(node)
        if path == "builtins.getattr" and node.args:
            return self._member_of(node.args[0])
        if path == "functools.partial" and len(node.args) == 1:
            return self.roles(node.args[0])
        if path is not None:
            return self._library_call(path, node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_OBJECT:
            same = frozenset(r for r in self.roles(node.func.value) if isinstance(r, (Wrapped, Module, Criterion)))
            if same:
                return same
        found: set[Role] = set()
        for role in self.roles(node.func):
            if isinstance(role, Wrapper) or (isinstance(role, Class) and self.is_wrapper_class(role.definition)):
                found.add(Wrapped(node))
            elif isinstance(role, Class):
                found.add(self._object_of(role.definition))
            elif isinstance(role, Function):
                found |= self._returns.get(role.definition, NONE)
        return frozenset(found)

    def _super(self, node: ast.Call) -> frozenset[Role]:
        """What `super()` gives: the object, as its class's bases see it."""
        function = self.source.function(node)
        owner = None if function is None else self.source.parent(function)
        if not isinstance(owner, ast.ClassDef):
            return NONE
        bases = (role for base in owner.bases for role in self._of_base(base, owner))
        return frozenset(self._object_of(role.definition) for role in bases if isinstance(role, Class))

    def _member_of(self, node: ast.expr) -> frozenset[Role]:
        """The functions and classes that a module of this program holds: what `getattr(models, name)` may be."""
        target = self.names.target(node)
        if not isinstance(target, OwnModule) or target.tree is None:
            return NONE
        found: set[Role] = set()
        for name in self.names.own_names(target.tree):
            own = self.names.follow(target.tree, name)
            if isinstance(own, Own):
                found |= self._variables.get((own.module, own.name), NONE)
        return frozenset(r for r in found if isinstance(r, (Function, Class)))

    def _library_call(self, path: str, node: ast.Call) -> frozenset[Role]:
        first = self.roles(node.args[0]) if node.args else NONE
        if path == "torch.nn.DataParallel":
            if any(isinstance(r, (Optimizer, WrappedOptimizer)) for r in first):
                return frozenset({WrappedOptimizer(node)})
            return frozenset({Wrapped(node)})
        if path == "torch.utils.data.DataLoader":
            return frozenset({Loader(node)})
        if path in PROGRESS_BARS:
            return frozenset(r for r in first if isinstance(r, (Loader, LoaderIterator)))
        if path in DRAWING:
            drawn = self._drawn(path, node)
            if drawn:
                return drawn
        if path.endswith(".GradScaler"):
            return frozenset({Scaler()})
        if path.startswith("torch.optim."):
            return frozenset({Optimizer()})
        if path.startswith("torch.nn.") and path.endswith("Loss"):
            return frozenset({Criterion(path, node)})
        if path.startswith(("torch.nn.", "torchvision.models.", "timm.")) and not path.startswith(
            "torch.nn.functional."
        ):
            return frozenset({Module()})
        if path in ("builtins.list", "builtins.tuple", "copy.deepcopy", "copy.copy"):
            return first
        return NONE

    def _drawn(self, path: str, node: ast.Call) -> frozenset[Role]:
        """What `map`, `zip`, `iter` and the like make of loaders, and of models that they wrap."""
        given = [r for argument in node.args for r in self.roles(argument)]
        if path == "builtins.map" and node.args and Wrapper() in self.roles(node.args[0]):
            return frozenset({Table(frozenset({Wrapped(node)}))})
        return frozenset(LoaderIterator(r.site) for r in given if isinstance(r, (Loader, LoaderIterator)))

    # -- classes ---------------------------------------------------------------------------------------------------

    def _object_of(self, definition: ast.ClassDef) -> Role:
        return Module(definition) if self.is_module_class(definition) else Instance(definition)

    def _of_base(self, base: ast.expr, definition: ast.ClassDef) -> frozenset[Role]:
        return frozenset(r for r in self.roles(base) if isinstance(r, Class) and r.definition is not definition)

    def _derived(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """The classes of this program that derive from a class."""
        if self._subclasses is None:
            self._subclasses = {}
            for one in (n for n in self.source.nodes if isinstance(n, ast.ClassDef) and n.bases):
                for base in self.lineage(one)[1:]:
                    self._subclasses.setdefault(base, []).append(one)
        return self._subclasses.get(definition, [])

    def lineage(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and its bases that this script defines, nearest first."""
        if definition not in self._lineages:
            self._lineages[definition] = self._find_lineage(definition)
        return self._lineages[definition]

    def _find_lineage(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        lineage = [definition]
        for owner in lineage:
            for base in owner.bases:
                for role in self._of_base(base, owner):
                    if isinstance(role, Class) and role.definition not in lineage:
                        lineage.append(role.definition)
        return lineage

    def _method(self, definition: ast.ClassDef, name: str) -> list[Function]:
        for owner in self.lineage(definition):
            if owner not in self._methods:
                self._methods[owner] = {item.name: item for item in reversed(owner.body) if isinstance(item, FUNCTIONS)}
            if name in self._methods[owner]:
                return [Function(self._methods[owner][name], definition)]
        return []

    def _is_method(self, function: FunctionNode) -> bool:
        return isinstance(self.source.parent(function), ast.ClassDef)

    def _is_static(self, function: FunctionNode) -> bool:
        return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)


def _replaces(target: ast.expr, site: ast.Call) -> bool:
    """Whether a wrap takes the place of what it wraps."""
    return bool(site.args) and same(target, site.args[0])


def defaults(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """The parameters that have a default, with it."""
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    found = list(zip(reversed(positional), reversed(arguments.defaults)))
    return found + [(a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d is not None]


def _is_property(method: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id.endswith("property") for d in method.definition.decorator_list)


def _merged(roles: frozenset[Role], depth: int = 0) -> frozenset[Role]:
    """Roles with at most one group of each length and one table: element by element what any of them holds."""
    if not any(isinstance(role, (Group, Table)) for role in roles):
        return roles
    merged: set[Role] = {role for role in roles if not isinstance(role, (Group, Table))}
    if depth == _DEEPEST:  # a value that is put into itself over and over
        return frozenset(merged)
    groups: dict[int, list[Group]] = {}
    for role in roles:
        if isinstance(role, Group):
            groups.setdefault(len(role.elements), []).append(role)
    for alike in groups.values():
        columns = zip(*(group.elements for group in alike))
        merged.add(Group(tuple(_merged(frozenset().union(*column), depth + 1) for column in columns)))
    tables = [role.values for role in roles if isinstance(role, Table)]
    if tables:
        merged.add(Table(_merged(frozenset().union(*tables), depth + 1)))
    return frozenset(merged)


def _is_module_path(path: str | None) -> bool:
    """Whether a dotted path names a class of modules, to derive from."""
    return path is not None and path.startswith(("torch.nn.", "torchvision.models.", "timm.models."))
