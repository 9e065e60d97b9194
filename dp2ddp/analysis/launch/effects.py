"""What statements do: what they run, whether that leads to a wrap, and whether it has an effect that shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from dp2ddp.analysis.control.callers import Callers
from dp2ddp.analysis.control.loops import Loops
from dp2ddp.analysis.roles import Class, Resolver, Wrapper
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument, given_to, is_main_guard, never_runs
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram


class Effects:
    """Answers what statements do, the script's own functions that they call included."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver, loops: Loops, callers: Callers) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self.loops = loops
        self.callers = callers
        self._parsers: set[str] = self._parser_names()
        self._building: dict[ast.Module, bool] = {}
        self._parsing: dict[FunctionNode, bool] = {}

    def wraps(self, node: ast.AST) -> bool:
        """Whether a node is a call that wraps a model."""
        if not isinstance(node, ast.Call):
            return False
        if self.names.qualified(node.func) in _WRAPS or self.resolver.holds(node.func, Wrapper):
            return True
        classes = (role.definition for role in self.resolver.roles(node.func) if isinstance(role, Class))
        return any(map(self.resolver.classes.is_wrapper, classes))

    def comes_to_a_wrap(self, *nodes: ast.AST) -> bool:
        """Whether statements or expressions lead to a wrap where they stand."""
        return any(map(self.wraps, self.runs(*nodes)))

    def leads_to_a_wrap(self, function: FunctionNode) -> bool:
        """Whether a function, when it is called, leads to a wrap."""
        return function in self._leading

    @cached_property
    def _leading(self) -> set[FunctionNode]:
        return self.callers.coming_to(node for node in self.source.nodes if self.wraps(node))

    def runs(self, *nodes: ast.AST) -> Iterator[ast.AST]:
        """What runs where statements stand: of functions nothing, of classes and imports what is in them."""
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for module in self.names.modules_behind(node):
                    yield from self.runs(*(inner for inner in module.body if not _is_apart(inner)))
            elif isinstance(node, ast.Assign):
                now = _run_now(node.value)
                yield from self.loops.reached(*([node] if node.value in now else [*node.targets, *now]))
            elif isinstance(node, (ast.For, ast.If, ast.With, ast.Try)):
                yield node
                for part in ast.iter_child_nodes(node):
                    parts = part.body if isinstance(part, ast.ExceptHandler) else [part]
                    yield from self.runs(*parts) if isinstance(parts[0], ast.stmt) else self.loops.reached(part)
            elif isinstance(node, ast.ClassDef):
                yield from self.runs(*node.body)
            elif not isinstance(node, FUNCTIONS):
                yield from self.loops.reached(node)

    def before_which_to_import(self, block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements of `block` that use CUDA, where a rank has to see its GPU alone; and imports that print."""
        for statement in block:
            called = [node.func for node in self.runs(statement) if isinstance(node, ast.Call)]
            paths = [self.names.qualified(func) or "" for func in called]
            prints = isinstance(statement, (ast.Import, ast.ImportFrom)) and "builtins.print" in paths
            moves = any(isinstance(func, ast.Attribute) and func.attr == "cuda" for func in called)
            if prints or moves or any(path.startswith("torch.cuda.") for path in paths):
                yield statement

    # -- what has no effect ----------------------------------------------------------------------------------------

    def inert(self, *nodes: ast.AST) -> bool:
        """Whether statements and expressions have no effect that shows."""
        return all(self._inert(n) if isinstance(n, ast.stmt) else self.inert_expression(n) for n in nodes)

    def _inert(self, statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            return not any(map(self._builds, self.names.modules_behind(statement)))
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            return not any(self.names.qualified(call.func) in _BUILDING for call in _run_at_import(statement))
        if isinstance(statement, (ast.Global, ast.Pass)):
            return True
        if isinstance(statement, ast.Assign):
            targets_fine = all(self._inert_target(t) for t in statement.targets)
            return targets_fine and all(map(self.inert_expression, _run_now(statement.value)))
        if isinstance(statement, ast.AnnAssign):
            return statement.value is None or self.inert_expression(statement.value)
        if isinstance(statement, ast.Expr):
            return self.inert_expression(statement.value)
        if isinstance(statement, ast.If):
            inside = [*statement.body, *statement.orelse]
            return never_runs(statement) or (self.inert_expression(statement.test) and all(map(self._inert, inside)))
        if isinstance(statement, ast.Try):
            blocks = [*statement.body, *statement.orelse, *statement.finalbody]
            blocks += [s for h in statement.handlers for s in h.body]
            return all(map(self._inert, blocks))
        if isinstance(statement, ast.With):
            return all(self.inert_expression(each.context_expr) for each in statement.items) and all(
                map(self._inert, statement.body)
            )
        if isinstance(statement, ast.For):
            return self.inert_expression(statement.iter) and all(map(self._inert, statement.body))
        return isinstance(statement, ast.Raise) and statement.exc is not None

    def _builds(self, module: ast.Module) -> bool:
        """Whether importing a module builds loaders or wraps models."""
        if module not in self._building:
            calls = (n for statement in module.body if not _is_apart(statement) for n in _run_at_import(statement))
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

    def inert_expression(self, node: ast.AST) -> bool:
        """Whether the calls in an expression have no effect that shows."""
        return all(self._inert_call(n) for n in ast.walk(node) if isinstance(n, ast.Call))

    def repeats(self, node: ast.AST) -> bool:
        """Whether an expression may be written a second time: it only reads, functions of the script's included."""
        parts = list(self.runs(node))
        calls = (part for part in parts if isinstance(part, ast.Call))
        kept = (part for part in parts if isinstance(part, (ast.Attribute, ast.Subscript, ast.Global)))
        return all(isinstance(getattr(part, "ctx", None), ast.Load) for part in kept) and all(
            self._inert_call(call) or _GETS.fullmatch(ast.unparse(call.func)) or self.resolver.functions_called(call)
            for call in calls
        )

    def _inert_call(self, call: ast.Call) -> bool:
        path = self.names.qualified(call.func) or ""
        if any(self.resolver.holds(argument, Wrapper) for argument in given_to(call)):
            return False  # `list(map(nn.DataParallel, nets))`
        root = call.func
        while isinstance(root, (ast.Attribute, ast.Call)):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        if isinstance(root, ast.Name) and root.id in self._parsers:
            return True
        if path in ("builtins.open", "io.open"):
            return only_reads(call)
        if path.startswith(_INERT_MODULES):
            return path not in _EFFECTS
        if path in _QUERIES or ASKS_TORCH.fullmatch(path):
            return True
        if not path and isinstance(call.func, ast.Attribute) and call.func.attr in _PLAIN_METHODS:
            return True
        return self._parses(call)

    def _parses(self, call: ast.Call) -> bool:
        """Whether a function of this script only parses arguments."""
        found = self.resolver.functions_called(call)
        return bool(found) and all(self._is_parsing(f.definition) for f in found)

    def _is_parsing(self, function: FunctionNode) -> bool:
        if function not in self._parsing:
            self._parsing[function] = False  # for where it calls itself
            parses = any(
                isinstance(n, ast.Attribute) and n.attr in ("parse_args", "parse_known_args")
                for n in ast.walk(function)
            )
            self._parsing[function] = parses and all(
                self._inert(ast.Expr(s.value) if isinstance(s, ast.Return) and s.value else s) for s in function.body
            )
        return self._parsing[function]

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


_WRAPS = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.data_parallel"})
_BUILDING = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.data_parallel", "torch.utils.data.DataLoader"})
_PLAIN_METHODS = frozenset(name for kind in (str, list, dict, set) for name in dir(kind) if not name.startswith("_"))
_INERT_MODULES = tuple(
    "argparse. builtins. collections. datetime. itertools. math. matplotlib. os.environ. os.path. pathlib. platform. "
    "re. string. time. torch.multiprocessing.".split()
)
_EFFECTS = frozenset(
    "builtins.print builtins.input builtins.exit builtins.eval builtins.exec time.sleep "
    "os.path.exists os.path.isfile os.path.isdir matplotlib.pyplot.show matplotlib.pyplot.pause "
    "matplotlib.pyplot.savefig matplotlib.pyplot.imsave matplotlib.image.imsave".split()
)
_QUERIES = frozenset(
    "os.getenv os.cpu_count os.getcwd os.getpid sys.exit sys.path.append sys.path.insert sys.setrecursionlimit "
    "warnings.filterwarnings warnings.simplefilter logging.getLogger socket.gethostname getpass.getuser json.load "
    "json.loads yaml.load yaml.safe_load yaml.full_load importlib.import_module".split()
)
# A method of a configuration, by its name.
_GETS = re.compile(r"[\w.]+\.get\w*")
# What there is to train on: `torch.mps.is_available()`, `torch.backends.mps.is_built()`.
ASKS_TORCH = re.compile(r"torch\.[\w.]+\.(is_available|is_built|device_count|current_accelerator)")


def only_reads(call: ast.Call) -> bool:
    """Whether a call of `open` opens a file for reading."""
    mode = argument(call, 1, "mode")
    return mode is None or (isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rbtU"))


def _run_now(value: ast.expr) -> list[ast.expr]:
    """What of an assignment's value runs there: not the functions that it keeps, `{"small": lambda: Net(3)}`."""
    kept = [value]
    if isinstance(value, (ast.List, ast.Tuple)):
        kept = value.elts
    elif isinstance(value, ast.Dict):
        kept = value.values
    functions = [each for each in kept if isinstance(each, ast.Lambda)]
    return [each for each in kept if each not in functions] if functions else [value]


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


def _is_apart(statement: ast.stmt) -> bool:
    """Whether a statement of a module does nothing itself while it is imported."""
    return is_main_guard(statement) or never_runs(statement) or isinstance(statement, (ast.Import, ast.ImportFrom))
