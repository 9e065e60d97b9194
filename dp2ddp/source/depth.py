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
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Callable, TypeVar, cast

from dp2ddp.errors import BadInput

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Bytes of the stack. Memory is taken as far as it is used.
_STACK = 1 << 29
#: What a frame of Python takes of the stack at most, where calls go through C.
_FRAME = 4096

#: Levels of nesting that no program has by chance.
_DEEP = 300

_here = threading.local()


def with_room(function: _Function) -> _Function:
    """Lets a function go deep. It runs in another thread, whose end is waited for; its exceptions come out here."""

    @functools.wraps(function)
    def roomy(*args: object, **kwargs: object) -> object:
        if getattr(_here, "has_room", False):
            return function(*args, **kwargs)
        result: Future[object] = Future()

        def run() -> None:
            _here.has_room = True
            try:
                result.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where it belongs
                result.set_exception(error)

        frames, stack = sys.getrecursionlimit(), threading.stack_size(_STACK)
        sys.setrecursionlimit(max(frames, _STACK // _FRAME))
        try:
            # A daemon: it only computes, so that Ctrl-C may end the command at once.
            threading.Thread(target=run, daemon=True).start()
            threading.stack_size(stack)
            return result.result()
        except RuntimeError:
            if result.done():
                raise
            sys.setrecursionlimit(frames)
            return function(*args, **kwargs)  # there is no memory for such a stack
        finally:
            threading.stack_size(stack)
            sys.setrecursionlimit(frames)

    return cast("_Function", roomy)


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
