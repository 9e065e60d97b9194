"""Which scripts of a directory are converted: those that `--entry` names, or else those that start and wrap."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dp2ddp.errors import BadInput
from dp2ddp.project import commands, entries
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.project.tree import Tree

_INIT = "__init__.py"


@dataclass(frozen=True)
class Choice:
    """What is started.

    Attributes:
        functions: the scripts, each with those of its functions that are started from outside.
        commands: the names of the commands that start them.
        unread: the files that name `DataParallel` but can't be read as Python, and why.
        unfollowed: lines of files that name `DataParallel` in a way that can't be followed.
    """

    functions: Mapping[str, Sequence[str]]
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: Sequence[BadInput] = ()
    unfollowed: Mapping[str, Sequence[int]] = field(default_factory=dict)


def named(names: Sequence[str], tree: Tree, sources: PythonFiles) -> Choice:
    """The scripts that `--entry` names: `FILE`, relative to the project or to the current folder, `module:function`.

    Raises:
        BadInput: there is no such file.
    """
    functions: dict[str, list[str]] = {}
    started: dict[str, list[str]] = {}
    installed = entries.started(sources, commands.read(tree.root, tree.files))
    for name in names:
        path, function = _entry(name, sources)
        functions.setdefault(path, []).extend(function)
        for each in function:
            call = f"python -c 'from {_module(path, sources)} import {each}; {each}()'"
            started.setdefault(path, []).append(installed.get(path, {}).get(each, call))
    return Choice(functions, started)


def _module(path: str, sources: PythonFiles) -> str:
    """What to call a file's module where it is imported."""
    folder, name = posixpath.split(path)
    parts = [] if name == _INIT else [name[: -len(".py")]]
    while posixpath.join(folder, _INIT) in sources:
        folder, name = posixpath.split(folder)
        parts.append(name)
    return ".".join(reversed(parts))


def _entry(name: str, sources: PythonFiles) -> tuple[str, list[str]]:
    path = _file(name, sources)
    if path is not None:
        return path, []
    module, _, function = name.rpartition(":")
    path = _file(module, sources) or (commands.module_file(module, "", sources) if module else None)
    if path is not None:
        return path, [function]
    raise BadInput(
        "--entry",
        what=f"no Python file {name!r} in {sources.root}",
        todo="name it by its path in the project, or a function as module:function",
    )


def _file(name: str, sources: PythonFiles) -> str | None:
    for place in (sources.root / name, name):
        if os.path.isfile(place):
            path = os.path.relpath(os.path.abspath(place), os.path.abspath(sources.root)).replace(os.sep, "/")
            if path in sources:
                return path
    return None


def guessed(tree: Tree, sources: PythonFiles, layout: Layout) -> Choice:
    """The scripts that come to a wrap.

    Raises:
        BadInput: there is something to convert, but no script to begin with.
    """
    found = entries.guess(sources, layout, commands.read(tree.root, tree.files))
    if not found.entries and found.wraps:
        path, lines = next(iter(found.wraps.items()))
        test = f", but for the test {found.tests[0]}" if found.tests else ""
        raise BadInput(
            str(sources.root),
            what=f"found no script to start that reaches the DataParallel at {path}:{lines[0]}{test}",
            todo="name it with --entry FILE, or a function with --entry module:function",
        )
    if not found.entries and found.unread:
        raise found.unread[0]
    functions = {path: list(found.commands.get(path, ())) for path in found.entries}
    names = {path: list(of.values()) for path, of in found.commands.items()}
    return Choice(functions, names, found.unread, found.unfollowed)


def unfollowed(chosen: Choice, converted: Collection[str]) -> Iterator[BadInput]:
    """Files outside of the scripts that were converted, in which a wrap may be hidden."""
    for path, lines in chosen.unfollowed.items():
        if path not in converted:
            yield BadInput(
                path,
                line=lines[0],
                what="may mean DataParallel, which can't be told without running it",
                todo="name the class plainly (nn.DataParallel), or check what becomes of this line",
            )
