"""What imported names stand for: `nn.DataParallel` is `torch.nn.DataParallel`, however it was imported."""

from __future__ import annotations

import ast

from dp2ddp.analysis.source import SCOPES, ScopeNode, Source

# Other paths under which the same object can be imported.
_ALIASES = {
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.data_parallel": "torch.nn.parallel.data_parallel",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.dataset.random_split": "torch.utils.data.random_split",
    "tensorboardX.SummaryWriter": "torch.utils.tensorboard.SummaryWriter",
    "torch.utils.tensorboard.writer.SummaryWriter": "torch.utils.tensorboard.SummaryWriter",
    "torch.autograd.variable.Variable": "torch.autograd.Variable",
    "torch.random.manual_seed": "torch.manual_seed",
    "torch.cuda.random.manual_seed": "torch.cuda.manual_seed",
    "torch.cuda.random.manual_seed_all": "torch.cuda.manual_seed_all",
}


class Names:
    """Resolves names to dotted paths through the script's imports, scope by scope."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._imported: dict[ScopeNode, dict[str, str]] = {}
        self._bound: dict[ScopeNode, set[str]] = {}
        for node in source.nodes:
            self._collect(node)

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import torch.nn` binds `torch`; `import torch.nn as nn` binds the module itself.
                local, path = (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
                self._imports_of(node)[local] = path
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                self._imports_of(node)[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._bound.setdefault(self.source.scope(node), set()).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bound.setdefault(self.source.scope(node), set()).add(node.name)
        elif isinstance(node, ast.arg):
            self._bound.setdefault(self.source.scope(node), set()).add(node.arg)

    def _imports_of(self, node: ast.AST) -> dict[str, str]:
        return self._imported.setdefault(self.source.scope(node), {})

    def qualified(self, node: ast.AST) -> str | None:
        """The dotted path that an expression names, None where it isn't a name that was imported."""
        if isinstance(node, ast.Attribute):
            base = self.qualified(node.value)
            return None if base is None else _canonical(f"{base}.{node.attr}")
        if not isinstance(node, ast.Name):
            return None
        for scope in (n for n in self.source.ancestors(node) if isinstance(n, SCOPES)):
            path = self._imported.get(scope, {}).get(node.id)
            if path is not None:
                return _canonical(path)
            if node.id in self._bound.get(scope, ()) and not isinstance(scope, ast.ClassDef):
                return None
        return f"builtins.{node.id}" if node.id in _BUILTINS else None


def _canonical(path: str) -> str:
    return _ALIASES.get(path, path)


_BUILTINS = frozenset(__builtins__ if isinstance(__builtins__, dict) else dir(__builtins__))
