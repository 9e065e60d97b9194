"""What the calls of libraries make."""

from __future__ import annotations

import ast
from typing import Callable

from dp2ddp.analysis.roles.kinds import (
    NONE,
    Criterion,
    Fields,
    Loader,
    LoaderIterator,
    Module,
    Optimizer,
    Role,
    Table,
    Wrapped,
    WrappedOptimizer,
    Wrapper,
)
from dp2ddp.source.nodes import keyword

# Methods that give back the object they were called on.
SAME_OBJECT = frozenset({"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "type", "requires_grad_"})
# Methods that parse a script's arguments.
PARSING = frozenset(
    "parse_args parse_known_args parse_intermixed_args parse_known_intermixed_args parse_args_into_dataclasses".split()
)
# Calls that make a dictionary, or an object with these fields.
_TABLES = frozenset(
    "builtins.dict collections.OrderedDict collections.defaultdict types.SimpleNamespace argparse.Namespace".split()
)
# Calls that draw from the loaders that they are given.
DRAWING = frozenset(
    "builtins.iter builtins.enumerate builtins.zip builtins.list builtins.tuple builtins.reversed builtins.map "
    "itertools.islice itertools.cycle itertools.chain".split()
)
# Calls that hand on their first argument's elements.
PROGRESS_BARS = frozenset(
    f"{module}.{name}"
    for module in ("tqdm", *(f"tqdm.{m}" for m in "auto autonotebook notebook std rich gui asyncio keras".split()))
    for name in ("tqdm", "tqdm_notebook")
) | frozenset(
    "rich.progress.track alive_progress.alive_it progressbar.progressbar fastprogress.progress_bar "
    "fastprogress.fastprogress.progress_bar click.progressbar tqdm.tqdm_gui".split()
)


def loads_whole_batches(loader: ast.Call) -> bool:
    """Whether a `DataLoader(...)` is visibly one whose batches can't be told apart by rows: it has a `collate_fn`."""
    given = keyword(loader, "collate_fn")
    return given is not None and not (isinstance(given, ast.Constant) and given.value is None)


def library_call(path: str, node: ast.Call, roles: Callable[[ast.AST], frozenset[Role]]) -> frozenset[Role]:
    """The roles of what a call of a library's function makes.

    Args:
        path: the function's dotted path.
        node: the call.
        roles: gives an expression's roles.
    """
    first = roles(node.args[0]) if node.args else NONE
    if path == "torch.nn.DataParallel":
        may_be_model = any(isinstance(r, (Module, Wrapped)) for r in first)  # as one of several that are given back
        if not may_be_model and any(isinstance(r, (Optimizer, WrappedOptimizer)) for r in first):
            return frozenset({WrappedOptimizer(node)})
        return frozenset({Wrapped(node)})
    if path in PROGRESS_BARS:
        return frozenset(r for r in first if isinstance(r, (Loader, LoaderIterator)))
    if path in DRAWING:
        drawn = _drawn(path, node, roles)
        if drawn:
            return drawn
    if path in ("builtins.list", "builtins.tuple", "copy.deepcopy", "copy.copy", "torch.compile"):
        return first
    if path in _TABLES:
        given = [*node.args, *(k.value for k in node.keywords)]
        values = (r for each in given for r in roles(each))
        return frozenset({Table(frozenset(v for r in values for v in (r.values if isinstance(r, Table) else {r})))})
    made = _made(path, node)
    return NONE if made is None else frozenset({made})


def _made(path: str, node: ast.Call) -> Role | None:
    """What a call builds whatever it is given."""
    if path == "torch.utils.data.DataLoader":
        return Loader(node)
    if path in ("collections.namedtuple", "typing.NamedTuple"):
        return Fields()
    if path.startswith("torch.optim."):
        return Optimizer()
    builds = path.startswith(("torch.nn.", "torchvision.models.", "timm.")) and not path.startswith(
        "torch.nn.functional."
    )
    if builds:
        return Criterion() if path.endswith("Loss") else Module()
    return None


def _drawn(path: str, node: ast.Call, roles: Callable[[ast.AST], frozenset[Role]]) -> frozenset[Role]:
    """What `map`, `zip`, `iter` and the like make of loaders, and of models that they wrap."""
    if path == "builtins.map" and node.args and Wrapper() in roles(node.args[0]):
        return frozenset({Table(frozenset({Wrapped(node)}))})
    given = [role for argument in node.args for role in roles(argument)]
    return frozenset(LoaderIterator(role.site) for role in given if isinstance(role, (Loader, LoaderIterator)))
