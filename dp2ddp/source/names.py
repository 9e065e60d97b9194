"""What imported names stand for: `nn.DataParallel` is `torch.nn.DataParallel`, however it was imported."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import NamedTuple, Union

from dp2ddp.source.nodes import attribute_got, closure
from dp2ddp.source.program import ParsedProgram, ScopeNode

# Other paths under which the same object can be imported.
_ALIASES = {
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.data_parallel": "torch.nn.parallel.data_parallel",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.random.manual_seed": "torch.manual_seed",
    "torch.cuda.random.manual_seed": "torch.cuda.manual_seed",
    "torch.cuda.random.manual_seed_all": "torch.cuda.manual_seed_all",
}


class Own(NamedTuple):
    """A name at the top level of one of the program's own modules."""

    module: ast.Module
    name: str


class OwnModule(NamedTuple):
    """A module or package of the program itself, as an import in the file of `importer` names it.

    `tree` is None for a folder without an `__init__.py`.
    """

    importer: ast.AST
    path: str
    level: int
    tree: ast.Module | None


#: What a name stands for: a dotted path elsewhere, or something in the program itself.
Target = Union[str, Own, OwnModule]


class Names:
    """Resolves names through the imports, scope by scope: to dotted paths, or into the program's own modules."""

    def __init__(self, source: ParsedProgram) -> None:
        self.source = source
        self._imported: dict[ScopeNode, dict[str, Target]] = {}
        self._stars: dict[ast.Module, list[ast.ImportFrom]] = {}
        self._bound: dict[ScopeNode, set[str]] = {}
        self._modules: dict[ast.AST, list[ast.Module]] = {}
        self._targets: dict[ast.AST, Target | None] = {}
        for node in source.nodes:
            self._collect(node)

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import torch.nn` binds `torch`; `import torch.nn as nn` binds the module itself.
                local, path = (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
                self._import(node, local, self._module(node, path) or self._namespace(node, alias.name) or path)
        elif isinstance(node, ast.ImportFrom):
            self._collect_from(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._bound.setdefault(self.source.scope(node), set()).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bound.setdefault(self.source.scope(node), set()).add(node.name)
        elif isinstance(node, ast.arg):
            self._bound.setdefault(self.source.scope(node), set()).add(node.arg)

    def _collect_from(self, node: ast.ImportFrom) -> None:
        path = node.module or ""
        package = self._module(node, path, node.level)
        for alias in node.names:
            if alias.name == "*":
                self._stars.setdefault(self.source.module(node), []).append(node)
                continue
            target: Target | None
            if package is not None and package.tree is not None:
                target = Own(package.tree, alias.name)
            else:  # a folder without an `__init__.py`, or no part of this program
                target = self._module(node, f"{path}.{alias.name}" if path else alias.name, node.level)
            if target is None and not node.level:
                target = f"{path}.{alias.name}"
            if target is not None:
                self._import(node, alias.asname or alias.name, target)

    def _module(self, importer: ast.AST, path: str, level: int = 0) -> OwnModule | None:
        """The program's own module that `path` names in an import, None for one from elsewhere."""
        tree = self.source.imported(importer, path, level)
        if tree is None:
            return None
        self._modules.setdefault(importer, []).append(tree)
        return OwnModule(importer, path, level, tree)

    def _namespace(self, importer: ast.AST, path: str) -> OwnModule | None:
        """The folder without an `__init__.py` that `import folder.module` binds."""
        own = "." in path and self._module(importer, path) is not None
        return OwnModule(importer, path.split(".")[0], 0, None) if own else None

    def _within(self, package: OwnModule, name: str) -> OwnModule | None:
        """A module inside a package."""
        path = f"{package.path}.{name}" if package.path else name
        found = self._module(package.importer, path, package.level)
        if found is None and package.tree is None:
            return OwnModule(package.importer, path, package.level, None)
        return found

    def _import(self, node: ast.AST, name: str, target: Target) -> None:
        self._imported.setdefault(self.source.scope(node), {})[name] = target

    def qualified(self, node: ast.AST) -> str | None:
        """The dotted path that an expression names, None where it isn't a name that was imported from elsewhere."""
        target = self.target(node)
        return target if isinstance(target, str) else None

    def target(self, node: ast.AST) -> Target | None:
        """What an expression names: a dotted path elsewhere, or something of the program's own modules."""
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            return None
        if node not in self._targets:
            self._targets[node] = self._find_target(node)
        return self._targets[node]

    def _find_target(self, node: ast.Name | ast.Attribute | ast.Call) -> Target | None:
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node.value, node.attr)
        given = attribute_got(node)
        return None if given is None else self._of_attribute(*given)

    def _of_attribute(self, value: ast.expr, name: str) -> Target | None:
        base = self.target(value)
        if isinstance(base, str):
            return _canonical(f"{base}.{name}")
        if isinstance(base, OwnModule):
            own = None if base.tree is None else self._own(base.tree, name, set())
            return own or self._within(base, name)
        return None

    def _of_name(self, node: ast.Name) -> Target | None:
        for scope in self.source.scopes(node):
            target = self._imported.get(scope, {}).get(node.id)
            if target is not None:
                return self._followed(target, set())
            is_bound = node.id in self._bound.get(scope, ()) and not isinstance(scope, ast.ClassDef)
            if is_bound and not _is_default_of(scope, node.id):
                return None
            if isinstance(scope, ast.Module) and scope in self._stars:
                starred = self._from_stars(scope, node.id, set())
                if starred is not None:
                    return starred
        return f"builtins.{node.id}" if node.id in _BUILTINS else None

    def _followed(self, target: Target, seen: set[Own]) -> Target | None:
        """The end of a chain of imports between the program's modules."""
        if isinstance(target, str):
            return _canonical(target)
        if isinstance(target, OwnModule):
            return target
        if target in seen:  # `from package import module` in the package itself
            return self._submodule(target.module, target.name)
        seen.add(target)
        return self._own(target.module, target.name, seen)

    def _own(self, module: ast.Module, name: str, seen: set[Own]) -> Target | None:
        """What `name` stands for in one of the program's modules, None where nothing there binds it."""
        imported = self._imported.get(module, {}).get(name)
        if imported is not None:
            return self._followed(imported, seen)
        if name in self._bound.get(module, ()):
            return Own(module, name)
        return self._from_stars(module, name, seen) or self._submodule(module, name)

    def _from_stars(self, module: ast.Module, name: str, seen: set[Own]) -> Target | None:
        here = Own(module, f"{name} by *")
        if here in seen or name.startswith("_"):
            return None
        seen.add(here)  # where it was looked once and not found it isn't
        for node in self._stars.get(module, ()):
            tree = self.source.imported(node, node.module or "", node.level)
            found = None if tree is None else self._own(tree, name, seen)
            if found is not None:
                return found
        others = [node.module or "" for node in self._stars.get(module, ()) if not node.level]
        # What two of them bring is the last one's.
        found = next(filter(None, (_starred(each, name) for each in reversed(others))), None)
        if found is None and not _STARRED.keys() >= set(others):  # one of a package that isn't here
            found = _CUSTOMARY.get(name)
        return None if found is None else _canonical(found)

    def _submodule(self, module: ast.Module, name: str) -> OwnModule | None:
        """`from package import module`, where the package's `__init__.py` doesn't bind it."""
        return self._module(module, name, 1) if self.source.is_package(module) else None

    def brings_own(self, statement: ast.stmt) -> bool:
        """Whether an import, or what is in a statement, runs a module of the program's own."""
        return any(node in self._modules for node in ast.walk(statement))

    def _imported_by(self, module: ast.Module) -> list[ast.Module]:
        return [tree for each in self._imports.get(module, ()) for tree in self._modules[each]]

    @cached_property
    def _imports(self) -> dict[ast.Module, list[ast.AST]]:
        """The import statements of each module that run others of the program's own."""
        found: dict[ast.Module, list[ast.AST]] = {}
        for node in self._modules:
            found.setdefault(self.source.module(node), []).append(node)
        return found

    def reachable(self, entry: ast.Module) -> set[ast.Module]:
        """A module and those of the program's own that it imports, directly or not."""
        reached = self.source.reached.get(self.source.file(entry).name, ())
        others = (file.tree for file in self.source.files if file.name in reached)
        return {*closure([entry], self._imported_by), *others}

    def follow(self, module: ast.Module, name: str) -> Target | None:
        """What `name` stands for at the top level of one of the program's modules."""
        return self._own(module, name, set())


def _is_default_of(scope: ScopeNode, name: str) -> bool:
    """Whether a function has a parameter whose default is what the name means outside: `def build(net, nn=nn)`."""
    if isinstance(scope, (ast.Module, ast.ClassDef)):
        return False
    given = [*scope.args.posonlyargs, *scope.args.args]
    pairs = [*zip(reversed(given), reversed(scope.args.defaults)), *zip(scope.args.kwonlyargs, scope.args.kw_defaults)]
    found = [default for parameter, default in pairs if parameter.arg == name]
    return any(isinstance(each, ast.Name) and each.id == name for each in found)


def _canonical(path: str) -> str:
    library, _, name = path.rpartition(".")
    return f"builtins.{name}" if library == "six.moves" and name in _BUILTINS else _ALIASES.get(path, path)


_BUILTINS = frozenset(__builtins__ if isinstance(__builtins__, dict) else dir(__builtins__))


#: What star imports of PyTorch's bring, as far as conversions ask for it; a class is told by its capital.
_STARRED = {
    "torch": re.compile("save|manual_seed"),
    "torch.nn": re.compile(r"parallel|[A-Z]\w*"),
    "torch.nn.modules": re.compile(r"[A-Z]\w*"),
    "torch.nn.parallel": re.compile("(Distributed)?DataParallel|data_parallel|replicate|scatter|parallel_apply|gather"),
    "torch.nn.parallel.data_parallel": re.compile("DataParallel|data_parallel"),
    "torch.optim": re.compile(r"lr_scheduler|\w*(SGD|Adam\w*|Ada\w+|LBFGS|R?prop|RMSprop)"),
    "torch.utils.data": re.compile("DataLoader|IterableDataset"),
    "torch.utils.data.dataloader": re.compile("DataLoader"),
}
#: What an unknown package's star import brings, where nothing else does.
_CUSTOMARY = {p.split(".")[-1]: p for p in "torch torch.nn torch.nn.DataParallel torch.utils.data.DataLoader".split()}


def _starred(module: str, name: str) -> str | None:
    """The dotted path of `name` where ``from module import *`` brings it, None where that isn't known."""
    known = _STARRED.get(module)
    return f"{module}.{name}" if known is not None and known.fullmatch(name) else None
