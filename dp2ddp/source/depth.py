"""Room for deeply nested programs: what Python compiles can be analysed, however deep one expression lies in another.

Python's own parser, written in C, takes thousands of levels (a sum of 2,900 terms is that deep). Walking such a tree
in Python takes several frames for each level, and reading it with libcst some kilobytes of the machine's stack; the
usual 1,000 frames and 8 MiB are too few. So the work is done in a thread that has more of both.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable, TypeVar, cast

from dp2ddp.errors import BadInput

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MIB = 1 << 20
#: Sizes of the stack, largest first. Memory is taken as far as it is used, but some systems don't promise so much.
_STACKS = (1024 * _MIB, 256 * _MIB, 64 * _MIB)
#: What a frame of Python takes of the stack at most, where calls go through C.
_FRAME = 4096

#: Levels of nesting that no program has by chance.
_DEEP = 300

_here = threading.local()
_lock = threading.Lock()
_limits: list[int] = []  # of the runs that are under way; the first is the one from before


def with_room(function: _Function) -> _Function:
    """Lets a function go deep. It runs in another thread, whose end is waited for; its exceptions come out here."""

    @functools.wraps(function)
    def roomy(*args: object, **kwargs: object) -> object:
        if getattr(_here, "has_room", False):
            return function(*args, **kwargs)
        return _in_thread(functools.partial(function, *args, **kwargs))

    return cast("_Function", roomy)


def _in_thread(work: Callable[[], object]) -> object:
    results: list[object] = []
    errors: list[BaseException] = []

    def run() -> None:
        _here.has_room = True
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it belongs
            errors.append(error)

    for size in _STACKS:
        with _frames(size // _FRAME):
            thread = _started(run, size)
            if thread is not None:
                thread.join()
                break
    else:
        run()
    if errors:
        raise errors[0]
    return results[0]


def _started(run: Callable[[], None], size: int) -> threading.Thread | None:
    """A thread with a stack of that size; None where there is no memory for it."""
    # A daemon: it only computes, so that Ctrl-C may end the command at once.
    thread = threading.Thread(target=run, daemon=True)
    with _lock:
        usual = threading.stack_size(size)
        try:
            thread.start()
        except RuntimeError:
            return None
        finally:
            threading.stack_size(usual)
    return thread


@contextmanager
def _frames(count: int) -> Iterator[None]:
    """Lets Python have so many frames meanwhile. The limit is the interpreter's: it is lowered by the last to leave."""
    with _lock:
        if not _limits:
            _limits.append(sys.getrecursionlimit())
        _limits.append(count)
        sys.setrecursionlimit(max(_limits))
    try:
        yield
    finally:
        with _lock:
            _limits.remove(count)
            sys.setrecursionlimit(max(_limits))
            if len(_limits) == 1:
                _limits.clear()


def too_deep(trees: Mapping[str, ast.AST]) -> BadInput | None:
    """The error about programs that are nested too deeply all the same; it names the deepest place. None where they are
    as flat as others: then it is our own mistake that frames ran out.

    Args:
        trees: the syntax trees, by the files' names.
    """
    depth, line, name = max((*_deepest(tree), name) for name, tree in trees.items())
    if depth < _DEEP:
        return None
    what = f"nested too deeply for dp2ddp ({depth} levels)"
    return BadInput(name, line=line, what=what, todo="break what begins there into several statements")


def _deepest(tree: ast.AST) -> tuple[int, int]:
    """How many levels a syntax tree has, and the line of the statement of the module in which that is."""
    found = (0, 1)
    for statement in ast.iter_child_nodes(tree):
        depth, level = 0, [statement]
        while level:
            depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
        found = max(found, (depth, getattr(statement, "lineno", 1)))
    return found
