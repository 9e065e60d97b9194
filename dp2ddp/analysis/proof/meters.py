"""Which classes are meters: they keep a sum and a count, and show their average."""

from __future__ import annotations

import ast


def is_meter(definition: ast.ClassDef) -> bool:
    """Whether a class works as the `AverageMeter` of many scripts: `update(val, n)` adds `val * n` and `n`.

    Whatever else a class keeps (a maximum, a history) couldn't be combined over ranks, so it is no meter then.
    """
    update = next((m for m in definition.body if isinstance(m, ast.FunctionDef) and m.name == "update"), None)
    if update is None or len(update.args.args) != 3:
        return False
    me, value, count = (a.arg for a in update.args.args)
    statements = [s for s in update.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if not all(_sets_only(s, {f"{me}.{name}" for name in ("val", "sum", "count", "avg")}) for s in statements):
        return False
    added = {
        ast.unparse(s.target): ast.unparse(s.value)
        for s in statements
        if isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add)
    }
    weighted = added.get(f"{me}.sum") in (f"{value} * {count}", f"{count} * {value}")
    return weighted and added.get(f"{me}.count") == count and len(added) == 2


def _sets_only(statement: ast.stmt, known: set[str]) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return all(t is not None and ast.unparse(t) in known for t in targets)
