"""Where the processes may start: after the arguments are parsed, before anything is printed, seeded, built or read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from dp2ddp.analysis.loops import Loops
from dp2ddp.analysis.names import Names
from dp2ddp.analysis.roles import Class, Resolver, Wrapper
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode, Source, is_main_guard


@dataclass(frozen=True)
class Launch:
    """The place for `ddp.setup(...)`.

    Attributes:
        entry: the module that is started.
        statement: setup goes right before it; None where nothing in the module has an effect.
        visible: the names that are bound there.
    """

    entry: ast.Module
    statement: ast.stmt | None
    visible: frozenset[str]


class LaunchFinder:
    """Walks the script in the order in which it runs, up to the first statement with an effect."""

    def __init__(self, source: Source, names: Names, resolver: Resolver, loops: Loops) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self.loops = loops
        self._parsers: set[str] = self._parser_names()
        self._building: dict[ast.Module, bool] = {}

    def find(self, entry: ast.Module) -> Launch:
        """The place before the first statement that has an effect, where `entry` is started."""
        bound: set[str] = set()
        found = self._first_effect(entry.body, bound, ())
        return Launch(entry, found, frozenset(bound))

    def _first_effect(self, block: list[ast.stmt], bound: set[str], calls: tuple[FunctionNode, ...]) -> ast.stmt | None:
        for statement in block:
            if is_main_guard(statement):
                assert isinstance(statement, ast.If)
                found = self._first_effect(statement.body, bound, calls)
                if found is not None:
                    return found
                continue
            entered = self._entered(statement)
            if entered is not None and entered not in calls and self._is_main(entered):
                inner = self._first_effect(entered.body, bound | _parameters(entered), (*calls, entered))
                if inner is not None:
                    bound |= _parameters(entered) | self._bound_before(entered.body, inner)
                    return inner
            elif not self._inert(statement):
                return statement
            bound |= bound_names(statement)
        return None

    def later(self, launch: Launch) -> Iterator[Launch]:
        """The places from `launch` on, in the order in which they run: before each statement, also of `main()` and of
        constructors, where those go on to wrap a model."""
        assert launch.statement is not None
        block = self.source.block(launch.statement)
        return self._places(launch.entry, block[block.index(launch.statement) :], set(launch.visible), ())

    def _places(
        self, entry: ast.Module, block: list[ast.stmt], bound: set[str], calls: tuple[FunctionNode, ...]
    ) -> Iterator[Launch]:
        declared = max((i for i, s in enumerate(block) if isinstance(s, (ast.Global, ast.Nonlocal))), default=-1)
        for number, statement in enumerate(block):
            if number > declared and not _is_text(statement):  # a name may not be used ahead of its declaration
                yield Launch(entry, statement, frozenset(bound))
            if is_main_guard(statement):
                assert isinstance(statement, ast.If)
                yield from self._places(entry, statement.body, bound, calls)
            entered = self._entered(statement) or self._constructed(statement)
            if entered is not None and entered not in calls and self._is_main(entered):
                yield from self._places(entry, entered.body, bound | _parameters(entered), (*calls, entered))
            bound |= bound_names(statement)

    def _bound_before(self, block: list[ast.stmt], stop: ast.stmt) -> set[str]:
        bound: set[str] = set()
        for statement in block:
            if statement is stop or any(n is stop for n in ast.walk(statement)):
                break
            bound |= bound_names(statement)
        return bound

    def _entered(self, statement: ast.stmt) -> FunctionNode | None:
        """The function of this script that a bare call statement, such as `main()`, runs."""
        call = statement.value if isinstance(statement, (ast.Expr, ast.Return)) else None
        if not isinstance(call, ast.Call):
            return None
        if isinstance(call.func, ast.Name) and all(map(self._inert_expression, _arguments(call))):
            found = self.resolver.functions_called(call)
            if len(found) == 1 and found[0].owner is None:
                return found[0].definition
        # sys.exit(main())
        if self.names.qualified(call.func) in ("sys.exit", "builtins.exit") and call.args:
            return self._entered(ast.copy_location(ast.Expr(call.args[0]), statement))
        return None

    def _constructed(self, statement: ast.stmt) -> FunctionNode | None:
        """The constructor, or the function, that an assignment such as `trainer = Trainer(args)` runs."""
        call = statement.value if isinstance(statement, (ast.Expr, ast.Return, ast.Assign)) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return None
        found = self.resolver.functions_called(call)
        return found[0].definition if len(found) == 1 else None

    def _is_main(self, function: FunctionNode) -> bool:
        """Whether a function, called once, is where the script goes on to wrap its model."""
        calls = [c for c in self.source.calls for f in self.resolver.functions_called(c) if f.definition is function]
        reached = (n for n in self.loops.reached(function) if isinstance(n, ast.Call))
        return len(calls) == 1 and any(map(self._wraps, reached))

    def _wraps(self, call: ast.Call) -> bool:
        if self.names.qualified(call.func) == "torch.nn.DataParallel" or self.resolver.holds(call.func, Wrapper):
            return True
        classes = (role.definition for role in self.resolver.roles(call.func) if isinstance(role, Class))
        return any(map(self.resolver.classes.is_wrapper, classes))

    # -- what has no effect ----------------------------------------------------------------------------------------

    def _inert(self, statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            return not any(map(self._builds, self.names.modules_behind(statement)))
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            return not any(self.names.qualified(call.func) in _BUILDING for call in _run_at_import(statement))
        if isinstance(statement, (ast.Global, ast.Pass)):
            return True
        if isinstance(statement, ast.Assign):
            targets_fine = all(self._inert_target(t) for t in statement.targets)
            return targets_fine and self._inert_expression(statement.value)
        if isinstance(statement, ast.AnnAssign):
            return statement.value is None or self._inert_expression(statement.value)
        if isinstance(statement, ast.Expr):
            return self._inert_expression(statement.value)
        if isinstance(statement, ast.If):
            return self._inert_expression(statement.test) and all(
                map(self._inert, [*statement.body, *statement.orelse])
            )
        if isinstance(statement, ast.Try):
            blocks = [*statement.body, *statement.orelse, *statement.finalbody]
            blocks += [s for h in statement.handlers for s in h.body]
            return all(map(self._inert, blocks))
        if isinstance(statement, ast.For):
            return self._inert_expression(statement.iter) and all(map(self._inert, statement.body))
        return isinstance(statement, ast.Raise) and statement.exc is not None

    def _builds(self, module: ast.Module) -> bool:
        """Whether importing a module builds loaders or wraps models."""
        if module not in self._building:
            calls = (n for statement in module.body if not is_main_guard(statement) for n in _run_at_import(statement))
            self._building[module] = any(self.names.qualified(call.func) in _BUILDING for call in calls)
        return self._building[module]

    def _inert_target(self, target: ast.expr) -> bool:
        """Names, attributes of the parsed arguments, and `os.environ[...]`."""
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(self._inert_target(t) for t in target.elts)
        if isinstance(target, ast.Subscript):
            return self.names.qualified(target.value) == "os.environ"
        if isinstance(target, ast.Attribute):
            path = self.names.qualified(target) or ""
            return not path.startswith("torch.")
        return isinstance(target, ast.Name)

    def _inert_expression(self, node: ast.expr) -> bool:
        return all(self._inert_call(n) for n in ast.walk(node) if isinstance(n, ast.Call))

    def _inert_call(self, call: ast.Call) -> bool:
        path = self.names.qualified(call.func) or ""
        if any(self.resolver.holds(argument, Wrapper) for argument in _arguments(call)):
            return False  # `list(map(nn.DataParallel, nets))`
        root = call.func
        while isinstance(root, (ast.Attribute, ast.Call)):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        if isinstance(root, ast.Name) and (root.id in self._parsers or self.names.qualified(root) == "argparse"):
            return True
        if path.startswith(_INERT_MODULES):
            return path not in _EFFECTS
        if path in _QUERIES:
            return True
        if not path and isinstance(call.func, ast.Attribute) and call.func.attr in _PLAIN_METHODS:
            return True
        return self._parses(call)

    def _parses(self, call: ast.Call) -> bool:
        """Whether a function of this script only parses arguments."""
        found = self.resolver.functions_called(call)
        return bool(found) and all(self._is_parsing(f.definition) for f in found)

    def _is_parsing(self, function: FunctionNode) -> bool:
        parses = any(
            isinstance(n, ast.Attribute) and n.attr in ("parse_args", "parse_known_args") for n in ast.walk(function)
        )
        return parses and all(isinstance(s, ast.Return) or self._inert(s) for s in function.body)

    def _parser_names(self) -> set[str]:
        """The names that hold argument parsers and their groups."""
        names: set[str] = set()
        for _ in range(2):
            for node in self.source.nodes:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    func = node.value.func
                    path = self.names.qualified(func) or ""
                    group = (
                        isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in names
                    )
                    if path.endswith("ArgumentParser") or (group and not func.attr.startswith("parse")):  # type: ignore[attr-defined]
                        names.update(t.id for t in node.targets if isinstance(t, ast.Name))
        return names


_BUILDING = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.data_parallel", "torch.utils.data.DataLoader"})
_PLAIN_METHODS = frozenset(name for kind in (str, list, dict, set) for name in dir(kind) if not name.startswith("_"))
_INERT_MODULES = tuple(
    "argparse. builtins. collections. datetime. itertools. math. os.environ. os.path. pathlib. re. string. time. "
    "torch.multiprocessing.".split()
)
_EFFECTS = frozenset(
    "builtins.print builtins.open builtins.input builtins.exit builtins.eval builtins.exec time.sleep "
    "os.path.exists os.path.isfile os.path.isdir".split()
)
_QUERIES = frozenset(
    "os.getenv os.cpu_count sys.exit sys.path.append sys.path.insert matplotlib.use warnings.filterwarnings "
    "warnings.simplefilter torch.cuda.is_available torch.cuda.device_count".split()
)


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a string by itself, as a docstring is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _run_at_import(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a statement, but for those in the bodies of functions."""
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)):
            yield from _run_at_import(default)
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _run_at_import(child)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def _parameters(function: FunctionNode) -> set[str]:
    return {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
    return names
