"""Code that only shows something: how often it runs on a rank doesn't matter, as other ranks show nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Callable

from dp2ddp.analysis.control.callers import Callers
from dp2ddp.analysis.control.loops import Loops
from dp2ddp.analysis.files.writers import Writers
from dp2ddp.analysis.roles import PROGRESS_BARS, Criterion, Module, Wrapped
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import given_to, keyword, names_in, parameters
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

SHOWING = ("builtins.print", "sys.stdout.", "sys.stderr.", "logging.", "tqdm.", "warnings.warn", "loguru.logger.")
_MAKING_BARS = (*PROGRESS_BARS, "tqdm.trange", "tqdm.auto.trange", "logging.getLogger")
#: What makes plain values of plain values.
PLAIN = (
    "builtins.", "time.", "datetime.", "math.", "os.path.basename", "os.get_terminal_size", "shutil.get_terminal",
    "torch.cuda.device_count", "torch.cuda.get_device_", "torch.cuda.mem_get_info", "torch.cuda.memory_",
    "torch.cuda.max_memory_",
)  # fmt: skip
_LOSS = re.compile(r"torch\.nn\.functional\.(\w*_loss|\w*cross_entropy\w*|kl_div)")
EFFECTS = frozenset("builtins.open builtins.input builtins.exec builtins.eval builtins.next builtins.setattr".split())


class Display:
    """Finds blocks that do nothing but show something.

    What they show must not be a batch, or an output: these are gathered where somebody looks, which takes all ranks.
    """

    def __init__(
        self,
        source: ParsedProgram,
        names: Names,
        loops: Loops,
        writers: Writers,
        callers: Callers,
        is_clock: Callable[[ast.expr], bool],
    ) -> None:
        self.source = source
        self.names = names
        self.loops = loops
        self.resolver = loops.resolver
        self.writers = writers
        self._callers = callers
        self._is_clock = is_clock
        self._functions: dict[FunctionNode, bool] = {}
        self._tensors: dict[ast.AST, set[str]] = {}

    def only_shows(self, branch: ast.If) -> bool:
        """Whether nothing depends on a branch but what is shown; with a function that does nothing else around it."""
        inside = [*branch.body, *branch.orelse]
        if self._shows_all(inside, branch, returns=False) or all(map(self._gives_text, inside)):
            return True
        function = self.source.function(branch)
        if function is None:
            return False
        # What only assigns takes no collective, whatever the function is given to show.
        only_assigns = all(map(_only_assigns, inside)) and self._shows_all(function.body, function, returns=True)
        return only_assigns or self._is_showing(function)

    def _gives_text(self, statement: ast.stmt) -> bool:
        """Whether a statement returns plain values as text, as `'{:.1f}h'.format(x / 3600)`."""
        if isinstance(statement, ast.If):
            return all(map(self._gives_text, [*statement.body, *statement.orelse]))
        text = statement.value if isinstance(statement, ast.Return) else None
        if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Mod):
            start: ast.expr = text.left
        elif isinstance(text, ast.Call) and isinstance(text.func, ast.Attribute) and text.func.attr == "format":
            start = text.func.value
        else:
            return isinstance(text, ast.JoinedStr) and self._is_plain(text)
        return isinstance(start, ast.Constant) and isinstance(start.value, str) and self._is_plain(text)

    def only_tells(self, block: Sequence[ast.stmt], whole: ast.stmt) -> bool:
        """Whether a block of a statement only shows something, or finds out what other lines only show."""
        return self._shows_all(block, whole, returns=False) and self._keeps_to_itself(whole)

    def _keeps_to_itself(self, whole: ast.stmt) -> bool:
        """Whether no other function, class or file can get at what a statement assigns."""
        parts = list(ast.walk(whole))
        targets = [target for n in parts if isinstance(n, ast.Assign) for target in n.targets]
        targets += [n.target for n in parts if isinstance(n, ast.AugAssign)]
        names = {name for target in targets for name in names_in(target)}
        function = self.source.function(whole)
        if function is None:
            in_class = any(isinstance(above, ast.ClassDef) for above in self.source.ancestors(whole))
            return not names or (not in_class and self.source.module(whole) in self.source.entry_trees)
        return not any(isinstance(n, (ast.Global, ast.Nonlocal)) and names & {*n.names} for n in ast.walk(function))

    def _is_showing(self, function: FunctionNode) -> bool:
        """Whether a function shows something, and gives nothing back."""
        if function not in self._functions:
            self._functions[function] = False  # where it calls itself
            shows = self._shows_all(function.body, function, returns=True)
            self._functions[function] = shows and all(map(self._is_given_plain, self._callers.of(function)))
        return self._functions[function]

    def _is_given_plain(self, call: ast.Call) -> bool:
        """Whether a call hands over no batch and no output."""
        given = given_to(call)
        return not any(self._holds_tensor(value, self._tensors_of(call)) for value in given)

    def _shows_all(self, block: Sequence[ast.stmt], whole: ast.AST, returns: bool) -> bool:
        return all(self._shows(statement, whole, returns) for statement in block)

    def _shows(self, statement: ast.stmt, whole: ast.AST, returns: bool) -> bool:
        if isinstance(statement, ast.Expr):
            value = statement.value
            return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and self._shows_by(value))
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            kept = all(self._is_shown_only(t, statement.value, whole) for t in targets)
            return kept and self._is_plain(statement.value)
        if isinstance(statement, ast.If):
            inner = [*statement.body, *statement.orelse]
            return self._is_plain(statement.test) and self._shows_all(inner, whole, returns)
        if isinstance(statement, ast.For):
            return self._is_plain(statement.iter) and self._shows_all(statement.body, whole, returns)
        if isinstance(statement, ast.Return):
            return returns and statement.value is None
        return isinstance(statement, (ast.Pass, ast.Global))

    def _shows_by(self, call: ast.Call) -> bool:
        if not all(map(self._is_plain, given_to(call))):
            return False
        path = self.names.qualified(call.func)
        if path is not None:
            return path.startswith(SHOWING) or path == "time.sleep"
        called = self.resolver.functions_called(call)
        if called:
            return all(self._is_showing(function.definition) for function in called)
        made = self.writers.packages(call.func)
        return bool(made) and all(m.startswith(_MAKING_BARS) or m.endswith(".SummaryWriter") for m in made)

    def _is_shown_only(self, target: ast.expr, value: ast.expr, whole: ast.AST) -> bool:
        """Whether what is assigned is a time, or is used nowhere else."""
        if not isinstance(target, (ast.Name, ast.Attribute)):
            return False
        if self._is_clock(value):
            return True
        if not isinstance(target, ast.Name):
            return False
        function = self.source.function(whole) if not isinstance(whole, FUNCTIONS) else whole
        scope: ast.AST = function or self.source.module(whole)
        if isinstance(whole, FUNCTIONS):
            return target.id in self.source.local_names(whole)
        inside = set(ast.walk(whole))
        uses = (n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == target.id)
        return all(n in inside or (not isinstance(whole, ast.If) and self._is_told(n)) for n in uses)

    def _is_told(self, name: ast.Name) -> bool:
        """Whether a name is shown where it stands, or gets what a sum or a list begins with."""
        statement = self.source.statement(name)
        if isinstance(name.ctx, ast.Store):
            value = statement.value if isinstance(statement, ast.Assign) else None
            return isinstance(value, ast.Constant) or (isinstance(value, ast.List) and not value.elts)
        return isinstance(statement, ast.Expr) and self._shows(statement, statement, returns=False)

    # -- values --------------------------------------------------------------------------------------------------------

    def _is_plain(self, node: ast.expr) -> bool:
        """Whether a value is made of plain values, and certainly not of a batch or an output."""
        tensors = self._tensors_of(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and not self._is_plain_call(part):
                return False
            if isinstance(part, ast.Name) and part.id in tensors:
                return False
            if isinstance(part, (ast.Lambda, ast.Await, ast.Yield, ast.NamedExpr)):
                return False
        return True

    def _is_plain_call(self, call: ast.Call) -> bool:
        path = self.names.qualified(call.func)
        if path is not None:
            return path.startswith(PLAIN) and path not in EFFECTS
        return isinstance(call.func, ast.Attribute) and (
            hasattr(str, call.func.attr) or call.func.attr in ("item", "total_seconds", "get_lr", "get_last_lr")
        )

    def _tensors_of(self, node: ast.AST) -> set[str]:
        """The names that hold batches, outputs and what is computed of them in the function around `node`."""
        scope: ast.AST = self.source.function(node) or self.source.module(node)
        if scope not in self._tensors:
            # (What another function calls its batch this one may use for something of its own.)
            own = self.source.local_names(scope) - parameters(scope) if isinstance(scope, FUNCTIONS) else set()
            loops = ((loop, self.source.function(loop.node) is scope) for loop in self.loops.data_loops)
            found = {name for loop, is_here in loops for name in names_in(loop.batch) - (set() if is_here else own)}
            assigned = [n for n in ast.walk(scope) if isinstance(n, (ast.Assign, ast.AugAssign))]
            before = -1
            while len(found) != before:
                before = len(found)
                for one in assigned:
                    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                    if self._holds_tensor(one.value, found):
                        found |= {name for target in targets for name in names_in(target)}
            self._tensors[scope] = found
        return self._tensors[scope]

    def _holds_tensor(self, value: ast.expr, known: set[str]) -> bool:
        """Whether a value is, or is made of, a batch or an output; a loss is a number, as is what `item()` gives."""
        if isinstance(value, ast.Call):
            path = self.names.qualified(value.func) or ""
            method = value.func.attr if isinstance(value.func, ast.Attribute) else ""
            number = method in ("item", "size", "tolist", "numel") or path in ("builtins.len", "builtins.float")
            is_loss = self.resolver.holds(value.func, Criterion) or _LOSS.fullmatch(path) is not None
            if number or (is_loss and keyword(value, "reduction") is None):
                return False
            if self.resolver.holds(value.func, Wrapped, Module):
                return True
        if isinstance(value, ast.Name):
            return value.id in known
        return any(self._holds_tensor(c, known) for c in ast.iter_child_nodes(value) if isinstance(c, ast.expr))


def _only_assigns(statement: ast.stmt) -> bool:
    """Whether a statement assigns what is reckoned, and asks or shows no value."""
    asking = (ast.Call, ast.JoinedStr, ast.Mod, ast.IfExp, ast.BoolOp, ast.Compare, ast.Subscript)
    is_one = isinstance(statement, (ast.Assign, ast.AugAssign))
    return is_one and not any(isinstance(part, asking) for part in ast.walk(statement))
