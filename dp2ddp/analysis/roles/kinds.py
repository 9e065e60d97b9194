"""The roles themselves: what a value of the script can be."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Union

from dp2ddp.source.program import FunctionNode


@dataclass(frozen=True)
class Wrapped:
    """A model in `nn.DataParallel`, by the call that wraps it."""

    site: ast.Call


@dataclass(frozen=True)
class Wrapper:
    """`nn.DataParallel` itself, or what wraps a model as it does."""


@dataclass(frozen=True)
class Module:
    """A plain `nn.Module`: a class of this script where `definition` is known.

    `presumed` where only this speaks for it: the script wraps a part of it in place.
    """

    definition: ast.ClassDef | None = None
    presumed: bool = False


@dataclass(frozen=True)
class Optimizer:
    """A `torch.optim` optimizer or scheduler."""


@dataclass(frozen=True)
class WrappedOptimizer:
    """An optimizer that the script put into `nn.DataParallel`."""

    site: ast.Call


@dataclass(frozen=True)
class Loader:
    """A `DataLoader`, by the call that builds it."""

    site: ast.Call


@dataclass(frozen=True)
class LoaderIterator:
    """What `iter(loader)` gives."""

    site: ast.Call


@dataclass(frozen=True)
class Criterion:
    """A loss of `torch.nn`."""


@dataclass(frozen=True)
class Function:
    """A function or method of this script; `owner` is the class of a bound method."""

    definition: FunctionNode
    owner: ast.ClassDef | None = None


@dataclass(frozen=True)
class Class:
    """A class of this script."""

    definition: ast.ClassDef


@dataclass(frozen=True)
class Instance:
    """An object of a class of this script that is no `nn.Module`."""

    definition: ast.ClassDef


@dataclass(frozen=True)
class Group:
    """A tuple or list whose elements' roles are known."""

    elements: tuple[frozenset[Role], ...]


@dataclass(frozen=True)
class Table:
    """A dictionary, or an object with fields, by the roles of all its values."""

    values: frozenset[Role]


@dataclass(frozen=True)
class Fields:
    """What makes a table of its arguments: a named tuple's class."""


Role = Union[
    Wrapped,
    Wrapper,
    Module,
    Optimizer,
    WrappedOptimizer,
    Loader,
    LoaderIterator,
    Criterion,
    Function,
    Class,
    Instance,
    Group,
    Table,
    Fields,
]
NONE: frozenset[Role] = frozenset()

_DEEPEST = 3  # groups and tables in each other


def merge(roles: frozenset[Role], depth: int = 0) -> frozenset[Role]:
    """Roles with at most one group of each length and one table: element by element what any of them holds."""
    if not any(isinstance(role, (Group, Table)) for role in roles):
        return roles
    merged: set[Role] = {role for role in roles if not isinstance(role, (Group, Table))}
    if depth == _DEEPEST:  # a value that is put into itself over and over
        return frozenset(merged)
    groups: dict[int, list[Group]] = {}
    for role in roles:
        if isinstance(role, Group):
            groups.setdefault(len(role.elements), []).append(role)
    for alike in groups.values():
        columns = zip(*(group.elements for group in alike))
        merged.add(Group(tuple(merge(frozenset().union(*column), depth + 1) for column in columns)))
    tables = [role.values for role in roles if isinstance(role, Table)]
    if tables:
        merged.add(Table(merge(frozenset().union(*tables), depth + 1)))
    return frozenset(merged)
