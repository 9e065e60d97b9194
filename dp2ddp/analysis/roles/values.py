"""The roles of an expression, read off what names, attributes and returns hold."""

from __future__ import annotations

import ast
from collections.abc import Callable

from dp2ddp.analysis.roles.bindings import Bindings
from dp2ddp.analysis.roles.classes import Classes, is_of_class, is_property, is_static
from dp2ddp.analysis.roles.kinds import (
    NONE,
    Class,
    Criterion,
    Fields,
    Function,
    Group,
    Instance,
    Loader,
    LoaderIterator,
    Module,
    Optimizer,
    Role,
    Table,
    Wrapped,
    WrappedOptimizer,
    Wrapper,
)
from dp2ddp.analysis.roles.libraries import PARSING, SAME_OBJECT, library_call
from dp2ddp.source.names import Names, Own, OwnModule
from dp2ddp.source.nodes import given_to
from dp2ddp.source.program import FunctionNode, ParsedProgram

_LONGEST = 20  # elements of a tuple or list that are told apart
_SELF = ("self", "cls")
_METHODS_OF_TABLES = frozenset(dir(dict))


class Values:
    """The roles of a script's expressions."""

    def __init__(self, source: ParsedProgram, names: Names) -> None:
        self.source = source
        self.names = names
        self.bindings = Bindings(source)
        self.classes = Classes(source, names, self.roles)
        self._settled = False  # whether `bindings` will stay as they are
        self._final: dict[ast.AST, frozenset[Role]] = {}
        self._now: dict[ast.AST, frozenset[Role]] = {}  # until then: what was found with the bindings as they are
        self._found_with = 0
        self._called: dict[ast.Call, list[Function]] = {}
        self._selves: dict[FunctionNode, tuple[str | None, frozenset[Role]]] = {}

    def roles(self, node: ast.AST) -> frozenset[Role]:
        """The roles that an expression can play."""
        if self._found_with != self.bindings.changes:
            self._now.clear()
            self._found_with = self.bindings.changes
        known = self._final if self._settled else self._now
        found = known.get(node)
        if found is None:
            found = known[node] = self._found(node)
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
                found.extend(self.classes.methods(role.definition, "__init__"))
        found.sort(key=lambda function: function.definition.lineno)
        if self._settled:
            self._called[call] = found
        return found

    def inner(self, role: Wrapped | WrappedOptimizer) -> frozenset[Role]:
        """What stands inside a `DataParallel`."""
        if isinstance(role, WrappedOptimizer):
            return frozenset({Optimizer()})
        inside = self.roles(role.site.args[0]) if role.site.args else NONE
        modules = frozenset(r for r in inside if isinstance(r, Module))
        return modules or frozenset({Module()})

    # -- names and attributes --------------------------------------------------------------------------------------

    def _of_Name(self, node: ast.Name) -> frozenset[Role]:  # noqa: N802 (named after the node)
        found = self._self_role(node)
        if found and node.id in _SELF:
            return found
        key = self.bindings.variable(node)  # a function of a class may take none, and be called as `Trainer.train(net)`
        return found | self._imported(node) | (NONE if key is None else self.bindings.named(*key))

    def _imported(self, node: ast.expr) -> frozenset[Role]:
        """The roles of what an expression names in another module of the program."""
        targets = (self.names.target(node), *self.names.others(node))
        return NONE.union(*(self.bindings.named(each.module, each.name) for each in targets if isinstance(each, Own)))

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
        """The name of a method's `self` or `cls`, and what it is: of the class, or of one that derives from it."""
        owner = self.source.parent(function)
        parameters = [*function.args.posonlyargs, *function.args.args]
        if not isinstance(owner, ast.ClassDef) or is_static(function) or not parameters:
            return None, NONE
        kinds = [owner, *self.classes.derived(owner)]
        what: Callable[[ast.ClassDef], Role] = Class if is_of_class(function) else self.classes.object_of
        return parameters[0].arg, frozenset(map(what, kinds))

    def _of_Attribute(self, node: ast.Attribute) -> frozenset[Role]:  # noqa: N802
        found: set[Role] = set(self._imported(node))
        bases = self.roles(node.value)
        found |= NONE if bases else self.bindings.stored(node.attr)
        for base in bases:
            if isinstance(base, (Wrapped, WrappedOptimizer)) and node.attr == "module":
                found |= self.inner(base)
            elif isinstance(base, Wrapped) and node.attr == "forward":
                found.add(base)  # to call it is to call the model
            elif isinstance(base, (Instance, Module)) and base.definition is not None:
                found |= self._member_of_object(base.definition, node.attr)
            elif isinstance(base, Table) and node.attr not in _METHODS_OF_TABLES:
                found |= base.values
            elif isinstance(base, Class):
                found |= self._member_of_class(base.definition, node.attr)
                found.update(self.classes.methods_of_class(base.definition, node.attr))
        return frozenset(found)

    def _member_of_object(self, definition: ast.ClassDef, name: str) -> frozenset[Role]:
        found = self._member_of_class(definition, name)
        for owner in self.classes.lineage(definition):
            found |= self.bindings.attribute(owner, name)
        for method in self.classes.methods(definition, name):
            found |= self.bindings.returned(method.definition) if is_property(method.definition) else {method}
        return found

    def _member_of_class(self, definition: ast.ClassDef, name: str) -> frozenset[Role]:
        """The roles of what class bodies bind, but for their methods, which are bound to the object."""
        found = (role for owner in self.classes.lineage(definition) for role in self.bindings.named(owner, name))
        return frozenset(role for role in found if not isinstance(role, Function))

    def _member_of_module(self, node: ast.expr) -> frozenset[Role]:
        """The functions and classes that a module of this program holds: what `getattr(models, name)` may be."""
        target = self.names.target(node)
        if not isinstance(target, OwnModule) or target.tree is None:
            return NONE
        found: set[Role] = set()
        for name in self.names.own_names(target.tree):
            own = self.names.follow(target.tree, name)
            if isinstance(own, Own):
                found |= self.bindings.named(own.module, own.name)
        return frozenset(r for r in found if isinstance(r, (Function, Class)))

    # -- groups ----------------------------------------------------------------------------------------------------

    def values(self, node: ast.expr) -> frozenset[Role]:
        """The roles of all that a list, tuple or dictionary holds."""
        found: frozenset[Role] = NONE
        for role in self.roles(node):
            if isinstance(role, Table):
                found |= role.values
            elif isinstance(role, Group):
                found = found.union(*role.elements)
        return found

    def elements(self, node: ast.expr) -> frozenset[Role]:
        """The roles of what a loop over lists, tuples or dictionaries gets."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            values = self.values(node.func.value)
            if node.func.attr == "items":
                return frozenset({Group((NONE, values))}) if values else NONE
            return values if node.func.attr == "values" else NONE
        path = self.names.qualified(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and path == "builtins.zip":
            return frozenset({Group(tuple(map(self.elements, node.args)))})
        if isinstance(node, ast.Call) and path == "builtins.enumerate" and node.args:
            return frozenset({Group((NONE, self.elements(node.args[0])))})
        return self.values(node)

    def _of_Tuple(self, node: ast.Tuple) -> frozenset[Role]:  # noqa: N802
        if any(isinstance(e, ast.Starred) for e in node.elts) or len(node.elts) > _LONGEST:
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

    def _of_Subscript(self, node: ast.Subscript) -> frozenset[Role]:  # noqa: N802
        if isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
            return self._member_of_module(node.value.value)
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

    # -- what holds one of several ---------------------------------------------------------------------------------

    def _of_IfExp(self, node: ast.IfExp) -> frozenset[Role]:  # noqa: N802
        return self.roles(node.body) | self.roles(node.orelse)

    def _of_BoolOp(self, node: ast.BoolOp) -> frozenset[Role]:  # noqa: N802
        return frozenset().union(*(self.roles(v) for v in node.values))

    def _of_NamedExpr(self, node: ast.NamedExpr) -> frozenset[Role]:  # noqa: N802
        return self.roles(node.value)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _of_Lambda(self, node: ast.Lambda) -> frozenset[Role]:  # noqa: N802
        return frozenset({Wrapper()}) if self.holds(node.body, Wrapped) else NONE

    def _of_Call(self, node: ast.Call) -> frozenset[Role]:  # noqa: N802
        path = self.names.qualified(node.func)
        if path == "builtins.super":
            return self._super(node)
        if path == "builtins.getattr" and node.args:
            return self._member_of_module(node.args[0])
        if path == "functools.partial" and len(node.args) == 1:
            return self.roles(node.args[0])
        if path is not None:
            return library_call(path, node, self.roles)
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_OBJECT:
            same = frozenset(r for r in self.roles(node.func.value) if isinstance(r, (Wrapped, Module, Criterion)))
            if same:
                return same
        found = self._own_call(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "__iter__":
            loaders = (r for r in self.roles(node.func.value) if isinstance(r, (Loader, LoaderIterator)))
            found |= {LoaderIterator(loader.site) for loader in loaders}
        if self.bindings.defaults and isinstance(node.func, ast.Attribute) and node.func.attr in PARSING:
            parsed = Table(self.bindings.defaults)
            found |= {Group((frozenset({parsed}), NONE)) if "known" in node.func.attr else parsed}
        return found

    def _own_call(self, node: ast.Call) -> frozenset[Role]:
        """What a call of the script's own function or class gives."""
        found: set[Role] = set()
        for role in self.roles(node.func):
            if isinstance(role, Wrapper) or (isinstance(role, Class) and self.classes.is_wrapper(role.definition)):
                found.add(Wrapped(node))
            elif isinstance(role, Fields):
                found.add(self._fields(node))
            elif isinstance(role, Class):
                found.add(self.classes.object_of(role.definition))
                if not self.classes.methods(role.definition, "__init__"):  # a data class
                    found.add(self._fields(node))
                if "torch.utils.data.DataLoader" in self.classes.libraries(role.definition):
                    found.add(Loader(node))
            elif isinstance(role, Function):
                found |= self.bindings.returned(role.definition)
        return frozenset(found)

    def _fields(self, node: ast.Call) -> Table:
        """What an object holds that only keeps what it is given."""
        return Table(frozenset().union(*map(self.roles, given_to(node))))

    def _super(self, node: ast.Call) -> frozenset[Role]:
        """What `super()` gives: the object, as its class's bases see it."""
        function = self.source.function(node)
        owner = None if function is None else self.source.parent(function)
        if not isinstance(owner, ast.ClassDef):
            return NONE
        return frozenset(map(self.classes.object_of, self.classes.bases(owner)))
