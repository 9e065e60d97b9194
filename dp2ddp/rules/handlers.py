"""DDP020: what ranks may not reach together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import argument, given_to, in_order, keyword, last_name

_THREADS = frozenset({"threading.Thread", "threading.Timer", "_thread.start_new_thread"})
_ALARMS = frozenset({"signal.alarm", "signal.setitimer"})
_MEMORY = re.compile("out of memory|OutOfMemory")
_WHAT = {
    "memory": (
        "a rank can run out of memory alone, and what follows needs all ranks in step: they would wait for it",
        "end the script here and below (`raise`), after no more than printing and saving",
    ),
    "swallowed": (
        "an error by one rank's rows is caught by that rank alone, and what follows needs all ranks in step",
        "let it end the script (`raise`), or leave out what is bad where samples are loaded",
    ),
    "thread": (
        "this thread may call a wrapped model, which takes all ranks, and threads come to it in another order on each",
        "call it in the main thread, or wait for the thread (`join`) before another one calls a model",
    ),
    "alarm": (
        "each rank has a timer of its own, which comes to each at another line; what its handler changes makes the "
        "ranks diverge",
        "count steps instead, or let rank 0's clock decide: `ddp.broadcast(time.time())`",
    ),
}


class HandlersRule(Rule):
    """Handlers for want of memory, threads that call the model and timers are named, once a file; they stay."""

    id = "DDP020"
    title = "Point out what ranks may not reach together"
    why = (
        "A rank may run out of memory, or meet another error, alone. A handler that prints, saves and ends is fine; "
        "after one that goes on to train, the ranks wait for each other, and say where. Threads that call the model, "
        "and timers (`SIGALRM`), come to each rank at another line. (Ctrl-C and other signals reach all ranks at the "
        "same step.)"
    )
    examples = (
        Example("""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
for _ in range(1000):
    try:
        net(torch.randn(8, 4)).sum().backward()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()
"""),
        Example("""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
for _ in range(100):
    try:
        net(torch.randn(8, 4)).sum().backward()
    except Exception as error:
        print(error)
        continue
"""),
        Example("""\
import threading
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))

def evaluate():
    print(net(torch.randn(8, 4)).sum())

threading.Thread(target=evaluate).start()
"""),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
try:
    for _ in range(1000):
        net(torch.randn(8, 4)).sum().backward()
except KeyboardInterrupt:  # comes to all ranks at the same step
    torch.save(net.state_dict(), "stopped.pt")
print(net(torch.randn(8, 4)))
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        kinds = (ast.ExceptHandler, ast.ClassDef, ast.Call)
        for node in in_order(n for n in facts.source.nodes if isinstance(n, kinds)):
            kind = _kind(facts, node)
            if kind:
                yield Note(self.id, facts.span(node), *_WHAT[kind])


def _kind(facts: Facts, node: ast.AST) -> str:
    """Which of these it is; empty for anything else."""
    if isinstance(node, ast.ExceptHandler):
        said = (n for n in ast.walk(node) if isinstance(n, (ast.Constant, ast.Name, ast.Attribute)))
        texts = (str(n.value) if isinstance(n, ast.Constant) else last_name(n) for n in said)
        if isinstance(node.body[-1], ast.Raise):
            return ""
        return "memory" if any(map(_MEMORY.search, texts)) else "swallowed" * _goes_on(facts, node)
    if isinstance(node, ast.ClassDef) and facts.classes.derives(node, _THREADS):
        return "thread" if any(_calls_wrapped(facts, each) for each in facts.classes.with_own(node, "run")) else ""
    path = facts.qualified(node.func) if isinstance(node, ast.Call) else None
    if path in _ALARMS:
        return "alarm"
    if path not in _THREADS or not isinstance(node, ast.Call):
        return ""
    given = keyword(node, "target") or argument(node, 1, "function") or argument(node, 0, "function")
    is_model = given is not None and facts.is_named_as_wrapped(given)
    bodies: list[ast.AST | None] = [
        given if given is None or isinstance(given, ast.Lambda) else facts.definition(given)
    ]
    if isinstance(given, ast.Attribute) and bodies == [None]:  # `self.trainer.run`
        classes = (n for n in facts.source.nodes if isinstance(n, ast.ClassDef))
        bodies = [each for kind in classes for each in facts.classes.with_own(kind, given.attr)]
    return "thread" if is_model or any(_calls_wrapped(facts, each) for each in bodies) else ""


def _goes_on(facts: Facts, handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes any error of a training step in a loop."""
    is_any = handler.type is None or facts.qualified(handler.type) in ("builtins.Exception", "builtins.BaseException")
    above = list(facts.source.ancestors(handler)) if is_any else []
    tried = above[0] if above else None
    if not isinstance(tried, ast.Try) or not any(isinstance(each, (ast.For, ast.While)) for each in above):
        return False
    calls = [n for each in tried.body for n in ast.walk(each) if isinstance(n, ast.Call)]
    return any(last_name(call.func) == "backward" or facts.is_named_as_wrapped(call.func) for call in calls)


def _calls_wrapped(facts: Facts, body: ast.AST | None) -> bool:
    """Whether what has the name of a wrapped model is called in there, or given to a function."""
    calls = [n for n in ast.walk(body) if isinstance(n, ast.Call)] if body is not None else []
    return any(facts.is_named_as_wrapped(each) for call in calls for each in (call.func, *given_to(call)))
