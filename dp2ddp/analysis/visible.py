"""What names mean where the processes start: whether an expression from elsewhere can be written there."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dp2ddp.analysis.bound_once import all_parameters, only_value
from dp2ddp.analysis.device_lists import made_of
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.launch.settled import ARGUMENTS
from dp2ddp.source.names import Own
from dp2ddp.source.program import FunctionNode

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts


def written(facts: Facts, launch: Launch, node: ast.expr) -> str | None:
    """`device_ids` as they can be written where the processes start, None where they can't."""
    found = told(facts, launch, node, parsed_again=True)
    if found is None:
        return None
    in_place = facts.source.parent(found) is not None
    return " ".join((facts.source.segment(found) if in_place else ast.unparse(found)).split())


def told(
    facts: Facts, launch: Launch, node: ast.expr, place: ast.expr | None = None, *, parsed_again: bool = False
) -> ast.expr | None:
    """An expression by what is known where the processes start, None where that may not be what it is further down.

    Names that aren't known there are followed to what they hold: parameters to arguments, `self.x` to its value.

    Args:
        place: where the expression is used; None for where it stands.
        parsed_again: whether arguments that are parsed once more further down count as the same. That is so of
            `device_ids` alone, whose number each wrap compares with that of the ranks.
    """
    asked = _Told(facts, launch, parsed_again)
    found = asked.of(node)
    return None if found is None or facts.changes.may_be(launch, found, place or node, asked.stays) else found


def told_of(facts: Facts, launch: Launch, part: ast.expr, place: ast.expr, ids: str | None) -> ast.expr | None:
    """A condition of `device_ids`, by what these are at the launch, as far as they are: `len(gpu_ids) > 0`."""
    found = None if ids is None else told(facts, launch, part, place, parsed_again=True)
    return found if found is not None and str(ids) in ast.unparse(found) else None


class _Told:
    """Follows names back to where the processes start."""

    def __init__(self, facts: Facts, launch: Launch, parsed_again: bool) -> None:
        self._facts = facts
        self._launch = launch
        self._parsed_again = parsed_again
        self._asked: list[ast.expr] = []

    def of(self, node: ast.expr) -> ast.expr | None:
        """What an expression is at the launch."""
        counted = _counted(self._facts, node)
        if counted is not None:
            return ast.parse(counted, mode="eval").body
        if not self._facts.launch_finder.effects.repeats(node):
            return None
        if visible(self._facts, self._launch, node):
            return node
        parts = {place: self._followed(part) for part, place in _unseen(self._facts, self._launch, node)}
        if any(value is None for value in parts.values()):
            return None
        values = {place: value for place, value in parts.items() if value is not None}
        found = _Put(values).visit(copy.deepcopy(node))
        return found if isinstance(found, ast.expr) and not _looks_into_constants(found) else None

    def stays(self, target: ast.AST) -> bool:
        """Whether an attribute, or an entry, is set to what it is at the launch: `args.gpu = gpu` in
        `work(args.gpu, args)`; or to devices of these numbers.

        Or a name to what it is: `opt = with_classes(opt, data)`, which writes into `opt`, and returns it."""
        above = self._facts.source.parent(target)
        if isinstance(target, ast.Name):
            return _is_given_back(self._facts, target)
        if not isinstance(target, (ast.Attribute, ast.Subscript)):
            return False
        if not isinstance(above, ast.Assign) or target not in above.targets:
            return False
        held, given = self.of(target.value), self.of(made_of(self._facts, above.value))
        part = f".{target.attr}" if isinstance(target, ast.Attribute) else f"[{ast.unparse(target.slice)}]"
        return held is not None and given is not None and ast.unparse(held) + part == ast.unparse(given)

    def _followed(self, node: ast.expr) -> ast.expr | None:
        """What a name, or an attribute of `self`, holds, by what is known at the launch."""
        if node in self._asked:
            return None
        self._asked.append(node)
        values = self._values(node)
        if self._parsed_again:
            values = [value for value in values if not self._parses_again(value)] or values
        found = [None if value is None else self.of(value) for value in values]
        self._asked.pop()
        function = self._facts.source.function(node)
        if isinstance(node, ast.Name) and function is not None and node.id in all_parameters(function):
            stores = [n for n in stores_of(ast.walk(function), node.id) if not _is_given_back(self._facts, n)]
            if stores and not _are_clipping(self._facts, stores):
                return None
            found = [None if each is None else _clipped(each) for each in found] if stores else found
        alike = {None if each is None else ast.unparse(each) for each in found}
        return found[0] if len(alike) == 1 else None

    def _parses_again(self, value: ast.expr | None) -> bool:
        """Whether a name holds what a function behind the launch makes of the same command line once more."""
        facts, launch = self._facts, self._launch
        held = only_value(facts, value) if isinstance(value, ast.Name) and not visible(facts, launch, value) else None
        return held is not None and ARGUMENTS in facts.launch_finder.settled.settles(held)

    def _values(self, node: ast.expr) -> list[ast.expr | None]:
        """All that is given to a name or an attribute of `self`: None for what can't be told."""
        if isinstance(node, ast.Attribute):
            return self._kept(node)
        assert isinstance(node, ast.Name)
        function = self._facts.source.function(node)
        if function is not None and node.id in all_parameters(function):
            calls = [c for c in self._facts.callers.of(function) if self._facts.comes_to(self._launch, c)]
            return [self._facts.resolver.given(call, function, node.id) for call in calls]
        return [only_value(self._facts, node) or self._given_back(node)]

    def _given_back(self, name: ast.Name) -> ast.expr | None:
        """What a function of the script returns in the place of a name: `device, ids = prepare_device(args.n)`."""
        scope = self._facts.source.scope(name)
        own = [n for n in stores_of(self._facts.source.nodes, name.id) if self._facts.source.scope(n) is scope]
        pair = self._facts.source.parent(own[0]) if len(own) == 1 else None
        whole = self._facts.source.parent(pair) if isinstance(pair, ast.Tuple) else None
        call = whole.value if isinstance(whole, ast.Assign) else None
        called = self._facts.resolver.functions_called(call) if isinstance(call, ast.Call) else []
        functions = {each.definition for each in called}
        function = functions.pop() if len(functions) == 1 else None
        returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)] if function is not None else []
        value = returns[0].value if len(returns) == 1 else None
        if not isinstance(pair, ast.Tuple) or not isinstance(value, ast.Tuple) or len(value.elts) != len(pair.elts):
            return None
        return value.elts[pair.elts.index(own[0])]

    def _kept(self, node: ast.Attribute) -> list[ast.expr | None]:
        """All that `self.x` is set to, by what the object may be: of the class, of one that derives from it."""
        classes = self._facts.resolver.classes
        owner = _owner(self._facts, node)
        assert owner is not None
        family = {base for one in (owner, *classes.derived(owner)) for base in classes.lineage(one)}
        stores = {
            other: _owner(self._facts, other)
            for other in self._facts.source.stores.get(node.attr, ())
            if isinstance(other, ast.Attribute) and self._facts.comes_to(self._launch, other)
        }
        own = [other for other, of in stores.items() if of in family]
        earlier = self._facts.before.nodes(self._launch)
        others = {other for other, of in stores.items() if of is None}
        if earlier.isdisjoint(own):  # the object is made later than the others are written to that come before
            others -= earlier
        set_by = [(other, self._facts.source.parent(other)) for other in own]
        values = [above.value if isinstance(above, ast.Assign) and n in above.targets else None for n, above in set_by]
        return [None] if others else [*values] or [None]


def _is_given_back(facts: Facts, store: ast.Name) -> bool:
    """Whether a name is set to what a function of the script returns: always what it was given by this name."""
    assigned = facts.source.parent(store)
    call = assigned.value if isinstance(assigned, ast.Assign) and store in assigned.targets else None
    called = facts.resolver.functions_called(call) if isinstance(call, ast.Call) else []
    arguments = facts.resolver.arguments(call) if isinstance(call, ast.Call) else []
    given = [(function, name) for function, name, value in arguments if _is_name(value, store.id)]

    def gives_back(function: FunctionNode) -> bool:
        returned = [n.value for n in ast.walk(function) if isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom))]
        names = [name for callee, name in given if callee is function and not stores_of(ast.walk(function), name)]
        return any(bool(returned) and all(_is_name(value, name) for value in returned) for name in names)

    return bool(called) and all(gives_back(each.definition) for each in called)


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _are_clipping(facts: Facts, stores: Sequence[ast.Name]) -> bool:
    """Whether a parameter is only set to the number of GPUs where it is larger, and to 0 where there are none."""
    return all(_clips(facts, store) for store in stores)


def _clips(facts: Facts, store: ast.Name) -> bool:
    assigned = facts.source.parent(store)
    branch = facts.source.parent(assigned) if isinstance(assigned, ast.Assign) else None
    if not isinstance(assigned, ast.Assign) or not isinstance(branch, ast.If) or assigned not in branch.body:
        return False
    if isinstance(assigned.value, ast.Constant) and assigned.value.value == 0:
        parts = branch.test.values if isinstance(branch.test, ast.BoolOp) else [branch.test]
        is_and = not isinstance(branch.test, ast.BoolOp) or isinstance(branch.test.op, ast.And)
        return is_and and any(_compares(facts, each, ast.Eq, "0") for each in parts)
    return _is_count(facts, assigned.value) and _compares(facts, branch.test, ast.Lt, store.id)


def _compares(facts: Facts, test: ast.expr, how: type[ast.cmpop], other: str) -> bool:
    """Whether the number of GPUs is compared with something, from whichever side."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    left, right = test.left, test.comparators[0]
    if isinstance(test.ops[0], ast.Gt):
        left, right = right, left
    is_it = isinstance(test.ops[0], how) or (how is ast.Lt and isinstance(test.ops[0], ast.Gt))
    return is_it and _is_count(facts, left) and ast.unparse(right) == other


def stores_of(nodes: Iterable[ast.AST], name: str) -> list[ast.Name]:
    """Where a name is set among some nodes."""
    return [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]


def _is_count(facts: Facts, value: ast.expr) -> bool:
    held = only_value(facts, value) if isinstance(value, ast.Name) else value
    return isinstance(held, ast.Call) and facts.names.qualified(held.func) in DEVICE_COUNTS


def _clipped(number: ast.expr) -> ast.expr:
    count = ast.Call(ast.Attribute(ast.Name("ddp", ast.Load()), "device_count", ast.Load()), [], [])
    return ast.Call(ast.Name("min", ast.Load()), [number, count], [])


class _Put(ast.NodeTransformer):
    """Puts expressions in the places of others."""

    def __init__(self, parts: dict[tuple[object, ...], ast.expr]) -> None:
        self._parts = parts

    def visit(self, node: ast.AST) -> ast.AST:
        found = self._parts.get(_place(node))
        return self.generic_visit(node) if found is None else found


def _looks_into_constants(node: ast.AST) -> bool:
    """Whether an attribute of a constant is asked for: what was `None` at first holds something else by then."""
    asked = (n for n in ast.walk(node) if isinstance(n, (ast.Attribute, ast.Subscript)))
    return any(isinstance(n.value, ast.Constant) and n.value.value is None for n in asked)


def _place(node: ast.AST) -> tuple[object, ...]:
    ends = (getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
    return (type(node), *ends)


def _unseen(facts: Facts, launch: Launch, node: ast.expr) -> Iterator[tuple[ast.expr, tuple[object, ...]]]:
    """The names, and attributes of `self`, in an expression that aren't known at the launch."""
    todo: list[ast.AST] = [node]
    inner = _bound_inside(node)
    while todo:
        part = todo.pop()
        is_own = isinstance(part, ast.Attribute) and _owner(facts, part) is not None
        if is_own or (isinstance(part, ast.Name) and part.id not in inner and not _means_the_same(facts, launch, part)):
            assert isinstance(part, ast.expr)
            yield part, _place(part)
        elif not isinstance(part, ast.Name):
            todo += ast.iter_child_nodes(part)


def _owner(facts: Facts, node: ast.Attribute) -> ast.ClassDef | None:
    """The class of whose instance this is an attribute, by the method's first parameter."""
    function = facts.source.function(node)
    first = next(iter(function.args.args), None) if function is not None else None
    owner = facts.source.parent(function) if function is not None else None
    named = isinstance(node.value, ast.Name) and first is not None and node.value.id == first.arg
    return owner if named and isinstance(owner, ast.ClassDef) else None


def _bound_inside(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _counted(facts: Facts, node: ast.expr) -> str | None:
    """`range(n)` and `list(range(n))` with what `n` is, if that is the number of devices, wherever it was counted."""
    inner = node
    while isinstance(inner, ast.Call) and facts.names.qualified(inner.func) in ("builtins.range", "builtins.list"):
        if len(inner.args) != 1 or inner.keywords:
            return None
        inner = inner.args[0]
    if not isinstance(inner, ast.Name) or inner is node:
        return None
    value = only_value(facts, inner)
    path = facts.names.qualified(value.func) if isinstance(value, ast.Call) else None
    return ast.unparse(node).replace(f"({inner.id})", f"({path}())") if path in DEVICE_COUNTS else None


DEVICE_COUNTS = ("torch.cuda.device_count", "torch.accelerator.device_count")
_ALL_DEVICES = frozenset({"None", *(text for n in DEVICE_COUNTS for text in (f"range({n}())", f"list(range({n}()))"))})
#: What a condition may consist of to be written once more; of calls, those that only look.
_PLAIN: tuple[type[ast.AST], ...] = (ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp)
_PLAIN = (*_PLAIN, ast.List, ast.Tuple, ast.Subscript, ast.expr_context, ast.cmpop, ast.boolop, ast.unaryop)
#: What calls may only look at something.
_LOOKING = (*DEVICE_COUNTS, "builtins.len", "builtins.bool", "builtins.int")


def is_plain(facts: Facts, test: ast.expr) -> bool:
    """Whether a condition only reads: what is written once more must be the same again, and short."""
    parts = list(ast.walk(test))
    counted = {part for call in parts if _only_looks(facts, call) for part in ast.walk(call)}
    return all(part in counted or isinstance(part, _PLAIN) for part in parts)


def _only_looks(facts: Facts, node: ast.AST) -> bool:
    """Whether a call counts devices or elements, or asks for the truth or the start of something."""
    if not isinstance(node, ast.Call):
        return False
    compares = isinstance(node.func, ast.Attribute) and node.func.attr in ("startswith", "endswith")
    return compares or facts.names.qualified(node.func) in _LOOKING


def means_all(facts: Facts, node: ast.expr) -> bool:
    """Whether `device_ids` are all visible devices, as they are without being given."""
    value = only_value(facts, node) if isinstance(node, ast.Name) else None
    if value is not None and not isinstance(value, ast.Name):
        return means_all(facts, value)
    if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
        own = node.generators[0]
        return ast.unparse(node.elt) == ast.unparse(own.target) and means_all(facts, own.iter)
    return (_counted(facts, node) or facts.source.segment(node)) in _ALL_DEVICES


def visible(facts: Facts, launch: Launch, node: ast.expr) -> bool:
    """Whether every name in an expression means the same where the processes start."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    inner = _bound_inside(node)
    return all(_means_the_same(facts, launch, n) for n in names if n.id not in inner)


def _means_the_same(facts: Facts, launch: Launch, name: ast.Name, passed: tuple[ast.AST | None, ...] = ()) -> bool:
    """Whether a name is what it is at the launch; behind the functions that it is followed from already."""
    if (facts.names.qualified(name) or "").startswith("builtins."):
        return True
    if name.id not in launch.visible:
        return False
    assert launch.statement is not None
    function, start = facts.source.function(name), facts.source.function(launch.statement)
    if function is not None and function is not start and name.id in facts.source.local_names(function):
        return function in passed or _handed_on(facts, launch, function, name.id, (*passed, function))
    there = facts.source.module(launch.statement)
    if facts.source.module(name) is there:
        return True
    # A name of another module: imported from the same place.
    target = facts.names.target(name) or Own(facts.source.module(name), name.id)
    return facts.names.follow(there, name.id) == target


def _handed_on(
    facts: Facts, launch: Launch, function: FunctionNode, name: str, passed: tuple[ast.AST | None, ...]
) -> bool:
    """Whether every caller gives the function this name's value under the same name."""
    calls = [call for call in facts.callers.of(function) if facts.comes_to(launch, call)]
    given = [facts.resolver.given(call, function, name) for call in calls]
    return bool(given) and all(
        isinstance(value, ast.Name) and value.id == name and _means_the_same(facts, launch, value, passed)
        for value in given
    )
