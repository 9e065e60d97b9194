"""The roles that names play: which hold the wrapped model, the optimizer, a loader, a loss.

Roles start at calls (`nn.DataParallel(...)`, `DataLoader(...)`, `optim.SGD(...)`) and move through assignment,
unpacking, `self.` attributes, parameters and returns, until nothing changes. Flow decides, never spelling. The
analysis is flow-insensitive: a name's roles are all that it ever holds.
"""

from dp2ddp.analysis.roles.classes import is_property
from dp2ddp.analysis.roles.kinds import (
    Class,
    Criterion,
    Function,
    Group,
    Instance,
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
from dp2ddp.analysis.roles.libraries import DRAWING, PARSING, PROGRESS_BARS, SAME_OBJECT
from dp2ddp.analysis.roles.resolver import Resolver, defaults

__all__ = [
    "DRAWING",
    "PARSING",
    "PROGRESS_BARS",
    "SAME_OBJECT",
    "Class",
    "Criterion",
    "Function",
    "Group",
    "Instance",
    "Loader",
    "LoaderIterator",
    "Module",
    "Optimizer",
    "Resolver",
    "Role",
    "Table",
    "Wrapped",
    "WrappedOptimizer",
    "Wrapper",
    "defaults",
    "is_property",
]
