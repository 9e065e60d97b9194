"""DataParallel's forward, written out: a function that replicates a model, scatters, applies and gathers by itself.

As in PyTorch's tutorial "Multi-GPU examples". It is `data_parallel(module, inputs)`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from dp2ddp.source.names import Names
from dp2ddp.source.program import ParsedProgram


@dataclass(frozen=True)
class WrittenOut:
    """A forward that is written out.

    Attributes:
        call: of `gather`, which gives what a call of the model would.
        module: the model.
        inputs: what is scattered.
        steps: the statements before, which are for nothing else.
    """

    call: ast.Call
    module: ast.expr
    inputs: ast.expr
    steps: tuple[ast.Assign, ...]


def step(names: Names, node: ast.AST | None) -> str:
    """Which of the steps a call is: `replicate`, `scatter`, `parallel_apply` or `gather`; empty if none."""
    path = names.qualified(node.func) or "" if isinstance(node, ast.Call) else ""
    return path.rsplit(".", 1)[-1] if path.startswith("torch.nn.parallel.") else ""


def written_out(source: ParsedProgram, names: Names, gather: ast.Call) -> WrittenOut | None:
    """The forward that ends with a call of `gather`; None unless its steps follow each other as in the tutorial."""
    if step(names, gather) != "gather" or not gather.args or gather.keywords:
        return None
    steps = _Steps(source, names, gather)
    apply = steps.value_of(gather.args[0], "parallel_apply")
    if apply is None or len(apply.args) != 2 or apply.keywords:
        return None
    replicate, scatter = steps.value_of(apply.args[0], "replicate"), steps.value_of(apply.args[1], "scatter")
    if replicate is None or scatter is None or not (len(replicate.args) == len(scatter.args) == 2):
        return None
    if not steps.are_all or replicate.keywords or scatter.keywords:
        return None
    return WrittenOut(gather, replicate.args[0], scatter.args[0], tuple(steps.passed))


class _Steps:
    """The statements before a call in its block, which set the names that it takes."""

    def __init__(self, source: ParsedProgram, names: Names, gather: ast.Call) -> None:
        statement = source.statement(gather)
        block = source.block(statement)
        self._names = names
        self._before = block[: block.index(statement)]
        self._inside = set(ast.walk(source.function(gather) or source.module(gather)))
        self._read = [n for n in self._inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        self.passed: list[ast.Assign] = []
        self._taken: set[ast.AST] = {*ast.walk(gather)}

    def value_of(self, node: ast.expr, wanted: str) -> ast.Call | None:
        """The call of a step that a name holds; `replicas = replicas[:len(inputs)]` may stand between."""
        if isinstance(node, ast.Call) and step(self._names, node) == wanted:
            return node
        if not isinstance(node, ast.Name):
            return None
        for statement in reversed(self._before):
            if not (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == node.id):
                continue
            self.passed.append(statement)
            self._taken.update(ast.walk(statement))
            if isinstance(statement.value, ast.Call) and step(self._names, statement.value) == wanted:
                return statement.value
            if not (isinstance(statement.value, ast.Subscript) and ast.unparse(statement.value.value) == node.id):
                return None
        return None

    @property
    def are_all(self) -> bool:
        """Whether nothing else reads what the steps set."""
        held = {target.id for each in self.passed for target in each.targets if isinstance(target, ast.Name)}
        return all(node in self._taken for node in self._read if node.id in held)
