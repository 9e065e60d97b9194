"""Which classes are meters: they keep a sum and a count, and show their average."""

from __future__ import annotations

import ast


def is_meter(definition: ast.ClassDef) -> bool:
    """Whether a class works as the `AverageMeter` of many scripts: `update(val, n)` adds `val * n` and `n`."""
    update = next((m for m in definition.body if isinstance(m, ast.FunctionDef) and m.name == "update"), None)
    if update is None or len(update.args.args) != 3:
        return False
    me, value, count = (a.arg for a in update.args.args)
    added = {
        ast.unparse(n.target): ast.unparse(n.value)
        for n in ast.walk(update)
        if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)
    }
    weighted = added.get(f"{me}.sum") in (f"{value} * {count}", f"{count} * {value}")
    return weighted and added.get(f"{me}.count") == count and len(added) == 2
