"""DataParallel's forward, written out: a function that replicates a model, scatters, applies and gathers by itself.

As in PyTorch's tutorial "Multi-GPU examples". It is `data_parallel(module, inputs)`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import takewhile

from dp2ddp.source.names import Names
from dp2ddp.source.nodes import last_name, names_in
from dp2ddp.source.program import ParsedProgram


@dataclass(frozen=True)
class WrittenOut:
    """A forward that is written out.

    Attributes:
        call: of `gather`, which gives what a call of the model would.
        module: the model.
        inputs: what is scattered.
        steps: the statements around it, which are for nothing else.
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
    statement = source.statement(gather)
    block = source.block(statement)
    before = reversed(block[: block.index(statement)])
    passed = [each for each in takewhile(lambda each: _is_step(names, each), before) if isinstance(each, ast.Assign)]
    # (`replicas = replicas[:len(inputs)]` may stand between, and changes nothing.)
    held = {ast.unparse(each.targets[0]): each.value for each in passed if isinstance(each.value, ast.Call)}

    def value_of(node: ast.expr, wanted: str) -> ast.Call | None:
        found = held.get(ast.unparse(node), node)
        is_plain = isinstance(found, ast.Call) and step(names, found) == wanted and not found.keywords
        return found if is_plain and isinstance(found, ast.Call) and len(found.args) == 2 else None

    apply = value_of(gather.args[0], "parallel_apply")
    replicate, scatter = apply and value_of(apply.args[0], "replicate"), apply and value_of(apply.args[1], "scatter")
    inside = ast.walk(source.function(gather) or source.module(gather))
    read = (n for n in source.nodes if isinstance(getattr(n, "ctx", None), ast.Load) or isinstance(n, ast.alias))
    loaded = {n.name if isinstance(n, ast.alias) else last_name(n) for n in read}
    behind = (each for each in block[block.index(statement) + 1 :] if isinstance(each, ast.Assign))
    # (`_replicas_ref = replicas`, which nobody reads, kept PyTorch 1.0 from freeing them too early.)
    passed += [
        each for each in behind if ast.unparse(each.value) in held and loaded.isdisjoint(names_in(each.targets[0]))
    ]
    taken = {node for each in (gather, *passed) for node in ast.walk(each)}
    others = (node for node in inside if isinstance(node, ast.Name) and node.id in held and node not in taken)
    if replicate is None or scatter is None or any(others):
        return None
    return WrittenOut(gather, replicate.args[0], scatter.args[0], tuple(passed))


def _is_step(names: Names, statement: ast.stmt) -> bool:
    """Whether it gives a name to what a step gives, or to the first of its replicas."""
    if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
        return False
    value, name = statement.value, statement.targets[0].id
    return bool(step(names, value)) or (isinstance(value, ast.Subscript) and ast.unparse(value.value) == name)
