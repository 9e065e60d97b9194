"""The loops of a script: which go over a loader's batches, and what they reach."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from dp2ddp.analysis.roles import (
    DRAWING,
    PROGRESS_BARS,
    Class,
    Function,
    Group,
    Loader,
    LoaderIterator,
    Module,
    Resolver,
    Role,
    Table,
    Wrapped,
)
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import closure, given_to, in_order, names_in
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

# Calls that draw as soon as they are made.
_EXHAUSTING = frozenset(
    "builtins.next builtins.list builtins.tuple builtins.set builtins.sorted builtins.sum builtins.max builtins.min "
    "builtins.any builtins.all builtins.dict".split()
)


@dataclass(frozen=True)
class DataLoop:
    """`for ... in loader:`, the loader bare, enumerated or under a progress bar.

    Attributes:
        node: the `for` statement.
        loader: the expression that names the loader, None where nothing in scope does.
        sites: the `DataLoader(...)` calls that it can be.
        batch: the target that takes the batch.
    """

    node: ast.For
    loader: ast.expr | None
    sites: frozenset[ast.Call]
    batch: ast.expr


class Loops:
    """Finds the loops and answers what their bodies do, calls into the script's own functions included."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self._walked: dict[FunctionNode, list[ast.AST]] = {}
        self._callees: dict[ast.AST, list[FunctionNode]] = {}  # of a function
        self.data_loops: list[DataLoop] = []
        self.irregular: list[ast.expr] = []  # other ways of drawing batches: next(...), zip(...), generators
        self.given_away: list[ast.AST] = []  # calls of what isn't known with a loader, and stores in it
        self._find()

    def _find(self) -> None:
        regular: set[ast.AST] = set()
        for node in self.source.nodes:
            if isinstance(node, ast.For):
                loop = self._data_loop(node)
                if loop is not None:
                    self.data_loops.append(loop)
                    regular.add(node)
        self.data_loops.sort(key=lambda loop: (loop.node.lineno, loop.node.col_offset))
        loops = (n for n in self.source.nodes if isinstance(n, (ast.comprehension, ast.For)) and n not in regular)
        self.irregular += [n.iter for n in loops if self._draws(n.iter)]
        self.irregular += [loop.node.iter for loop in self.data_loops if _hands_out(loop.node)]
        self.irregular += [n.value for n in self.source.nodes if isinstance(n, ast.YieldFrom) and self._draws(n.value)]
        self.irregular += [c for c in self.source.calls if self._is_next(c)]
        self.given_away += [c for c in self.source.calls if self._gives_away(c)]
        self.given_away += [n for n in self.source.nodes if isinstance(n, ast.Assign) and self._stores_away(n)]

    def _is_next(self, call: ast.Call) -> bool:
        """Whether a call draws batches itself: `next(iterator)`, `iterator.next()`, `list(loader)`."""
        if self.names.qualified(call.func) in _EXHAUSTING:
            return any(self.resolver.holds(a, Loader, LoaderIterator) for a in call.args)
        draws = isinstance(call.func, ast.Attribute) and call.func.attr in ("next", "__next__", "__iter__")
        return draws and self.resolver.holds(call.func.value, Loader, LoaderIterator)  # type: ignore[attr-defined]

    def _gives_away(self, call: ast.Call) -> bool:
        """Whether a call gives a loader to what isn't known, and may draw from it."""
        given = (each.value if isinstance(each, ast.Starred) else each for each in given_to(call))
        sites = {site for each in given for site in self.sites_in(each)}
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "insert", "extend", "update"):
            return not sites <= self.sites_in(call.func.value)
        return bool(sites) and not self._is_known(call)

    def _stores_away(self, node: ast.Assign) -> bool:
        """Whether a loader is stored in an object that isn't known, and that others may take it out of."""
        parts = (part for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Attribute))
        return bool(self.sites_in(node.value)) and any(not self.resolver.roles(part.value) for part in parts)

    def _is_known(self, call: ast.Call) -> bool:
        """Whether it is known what becomes of the loaders and models that a call is given."""
        path = self.names.qualified(call.func) or ""
        harmless = path.startswith(("builtins.", "logging.")) and path != "builtins.setattr"
        harmless = harmless or path in PROGRESS_BARS or path in DRAWING
        return harmless or self.resolver.holds(call.func, Function, Class)

    def sites_in(self, node: ast.AST) -> set[ast.Call]:
        """The `DataLoader(...)` calls whose loaders an expression can hold, in lists and dictionaries, too."""
        return set(_sites(self.resolver.roles(node)))

    def _draws(self, node: ast.expr) -> bool:
        return any(
            isinstance(n, ast.expr) and self.resolver.holds(n, Loader, LoaderIterator) for n in ast.walk(node)
        ) and not (isinstance(node, ast.Call) and self.names.qualified(node.func) in ("builtins.range", "builtins.len"))

    def _data_loop(self, node: ast.For) -> DataLoop | None:
        loader, batch = self._iterated(node)
        sites = frozenset(r.site for r in self.resolver.roles(loader) if isinstance(r, Loader))
        return DataLoop(node, self._named(loader, node), sites, batch) if sites else None

    def _iterated(self, node: ast.For) -> tuple[ast.expr, ast.expr]:
        """What a `for` iterates over and binds, without `enumerate` and progress bars: `tqdm(enumerate(loader))`."""
        iterated, target = node.iter, node.target
        while isinstance(iterated, ast.Call) and iterated.args:
            path = self.names.qualified(iterated.func)
            if path == "builtins.enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                target = target.elts[1]
            elif path not in PROGRESS_BARS:
                break
            iterated = iterated.args[0]
        return iterated, target

    def _named(self, loader: ast.expr, loop: ast.For) -> ast.expr | None:
        """The expression that names the loader itself: `pbar = tqdm(loader)` iterated as `pbar` names `loader`."""
        if not is_path(loader):
            return None
        if isinstance(loader, ast.Name):
            bars = [v for v in self._values(loader.id, loop) if self._is_bar(v)]
            if bars:
                inside = bars[-1].args[0]  # type: ignore[attr-defined]
                itself = isinstance(inside, ast.Name) and inside.id == loader.id
                return inside if len(bars) == 1 and is_path(inside) and not itself else None
        return loader

    def _values(self, name: str, near: ast.AST) -> list[ast.expr]:
        """What a name is bound to in the scope of `near`, by assignment or `with ... as`."""
        return self._assigned.get((self.source.scope(near), name), [])

    @cached_property
    def _assigned(self) -> dict[tuple[ast.AST, str], list[ast.expr]]:
        found: dict[tuple[ast.AST, str], list[ast.expr]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                targets, value = [node.optional_vars], node.context_expr
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Name):
                    found.setdefault((self.source.scope(node), target.id), []).append(value)
        return found

    def _is_bar(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and bool(node.args) and self.names.qualified(node.func) in PROGRESS_BARS

    def reached(self, *roots: ast.AST) -> Iterator[ast.AST]:
        """Every node of `roots` and of the script's functions that they call, directly or not."""
        for root in closure(roots, self._called_in):
            yield from self._inside(root)

    def _called_in(self, root: ast.AST) -> list[FunctionNode]:
        """The script's functions that are called in a node."""
        known = self._callees.get(root)
        if known is None:
            calls = (node for node in self._inside(root) if isinstance(node, ast.Call))
            known = [each.definition for call in calls for each in self.resolver.functions_called(call)]
            if isinstance(root, FUNCTIONS):
                self._callees[root] = known
        return known

    def _inside(self, root: ast.AST) -> Iterable[ast.AST]:
        """A node and all in it; functions are kept, as many questions come by them."""
        if not isinstance(root, FUNCTIONS):
            return ast.walk(root)
        if root not in self._walked:
            self._walked[root] = list(ast.walk(root))
        return self._walked[root]

    def uses_model(self, loop: DataLoop) -> bool:
        """Whether the loop's body calls a model: wrapped, or what is or was inside the wrap."""
        return any(self.models_called(loop.node))

    def models_called(self, loop: ast.For) -> Iterator[ast.expr]:
        """The expressions that name a model, for each call of one in a loop's body."""
        for node in self.reached(*loop.body):
            if isinstance(node, ast.Call) and not self._is_training_switch(node):
                called = _called(node)
                is_functional = self.names.qualified(called) == "torch.nn.parallel.data_parallel"
                if is_functional or self.resolver.holds(called, Wrapped, Module):
                    yield called
        yield from self._given_with_the_batch(loop)

    def _given_with_the_batch(self, loop: ast.For) -> Iterator[ast.expr]:
        """The models that what isn't known gets together with a batch, and may call: a library's loss."""
        calls = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Call)]
        for call in calls:
            models = [each for each in given_to(call) if self.resolver.holds(each, Wrapped)]
            if models and not self._is_known(call):
                batch = _made_of(self._iterated(loop)[1], loop.body)
                if any(names_in(each) & batch for each in given_to(call) if each not in models):
                    yield from models

    def foreign(self) -> list[ast.expr]:
        """What loops that feed a model iterate over that is built elsewhere, by a library: the innermost ones."""
        known = {loop.node for loop in self.data_loops}
        loops = [n for n in self.source.nodes if isinstance(n, ast.For) and n not in known]
        found: list[ast.expr] = []
        for node in loops:
            batch = names_in(node.target)
            iterated = self._named(self._iterated(node)[0], node)
            if iterated is None or self.resolver.roles(iterated) or self.names.qualified(iterated):
                continue
            if self._is_no_loader(iterated, node) or (self.given_away and self._comes_from_nobody(iterated)):
                continue  # what is handed to functions that aren't followed is sharded where it is made
            body = list(self.reached(*node.body))
            inner = any(isinstance(n, (ast.For, ast.While)) and self._is_step(n.body, batch) for n in body)
            uses = any(isinstance(n, ast.Name) and n.id in batch for n in body)
            if uses and not inner and self._is_step(node.body, batch):
                found.append(iterated)
        return in_order(found)

    def _comes_from_nobody(self, iterated: ast.expr) -> bool:
        """Whether this is a parameter of a function that no call of the script is known to call."""
        function = self.source.function(iterated)
        if function is None or not isinstance(iterated, ast.Name):
            return False
        return iterated.id in {each.arg for each in function.args.args} and function not in self._called

    @cached_property
    def _called(self) -> set[FunctionNode]:
        return {each.definition for call in self.source.calls for each in self.resolver.functions_called(call)}

    def _is_no_loader(self, iterated: ast.expr, node: ast.For) -> bool:
        """Whether what is iterated is numbers or an array, a part of a batch, or comes from a loader that is known."""
        name = next(n.id for n in ast.walk(iterated) if isinstance(n, ast.Name))
        values = self._values(name, node)
        if any(self.is_count(value) or self._is_array(value) for value in values):
            return True
        if any(self.sites_in(given) for value in values for given in self._in(value)):
            return True
        around = [loop for loop in self.data_loops if loop.node in self.source.ancestors(node)]
        return any(name in _made_of(loop.batch, loop.node.body) for loop in around)

    def _is_array(self, value: ast.expr) -> bool:
        """Whether a value is a tensor or an array: `torch.randperm(n).view(-1, 8)`."""
        while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
            path = self.names.qualified(value) or ""
            if path.startswith(("torch.", "numpy.")):
                return not path.startswith("torch.utils.data.")
            value = value.func if isinstance(value, ast.Call) else value.value
        return False

    def _in(self, value: ast.expr) -> Iterator[ast.expr]:
        """What a call is given; and what is given to objects of the script's own classes among that."""
        for given in given_to(value) if isinstance(value, ast.Call) else ():
            yield given
            if isinstance(given, ast.Call) and self.resolver.holds(given.func, Class):
                yield from self._in(given)

    def _is_step(self, body: list[ast.stmt], batch: set[str]) -> bool:
        """Whether statements run a model and a backward pass, or give a wrapped model a part of the batch."""
        calls = [n for n in self.reached(*body) if isinstance(n, ast.Call)]
        if any(self.resolver.holds(c.func, Wrapped) and names_in(c) & batch for c in calls):
            return True
        backward = any(isinstance(c.func, ast.Attribute) and c.func.attr == "backward" for c in calls)
        return backward and any(self.resolver.holds(c.func, Wrapped, Module) for c in calls)

    def _is_training_switch(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Attribute) and call.func.attr in ("train", "eval")

    def is_count(self, node: ast.expr) -> bool:
        """Whether an expression is `range(...)` or `trange(...)`, perhaps under a progress bar."""
        while isinstance(node, ast.Call) and node.args:
            path = self.names.qualified(node.func) or ""
            if path == "builtins.range" or path.endswith(".trange"):
                return True
            if path not in PROGRESS_BARS:
                return False
            node = node.args[0]
        return False


def _made_of(batch: ast.expr, body: list[ast.stmt]) -> set[str]:
    """The names of a loop's batch, and of what its body assigns from these."""
    names = names_in(batch)
    for node in (n for part in body for n in ast.walk(part)):
        if isinstance(node, ast.Assign) and names_in(node.value) & names:
            names.update(*map(names_in, node.targets))
    return names


def _hands_out(loop: ast.For) -> bool:
    """Whether the loop is a generator's, and others get its batches."""
    inner = {n for s in ast.walk(loop) if isinstance(s, (*FUNCTIONS, ast.Lambda)) for n in ast.walk(s)}
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) and n not in inner for n in ast.walk(loop))


def _sites(roles: frozenset[Role]) -> Iterator[ast.Call]:
    for role in roles:
        if isinstance(role, (Loader, LoaderIterator)):
            yield role.site
        elif isinstance(role, Group):
            yield from (site for element in role.elements for site in _sites(element))
        elif isinstance(role, Table):
            yield from _sites(role.values)


def _called(call: ast.Call) -> ast.expr:
    """What a call runs: `net` in `net(x)` and in `net.forward(x)`."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "forward" else call.func


def is_path(node: ast.expr) -> bool:
    """Whether an expression names something: `self.train_loader`, `loaders["train"]`, `loaders[phase]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Constant, ast.Name)):
            return False
        node = node.value
    return isinstance(node, ast.Name)
