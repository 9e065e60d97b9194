"""DDP020: exceptions after which the ranks may diverge."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.ranks.exception_handlers import Handlers
from dp2ddp.analysis.roles import Function, Wrapped
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import argument, given_to, keyword


class HandlersRule(Rule):
    """Names handlers after which the ranks would wait for each other, and threads by which they part; they stay."""

    id = "DDP020"
    title = "Point out exception handlers that ranks don't reach together"
    effect = "points out exception handlers that ranks don't reach together"
    parallel = True
    why = (
        "A rank may run out of memory alone. A handler that prints, saves and ends is fine. One that goes on to train "
        "or evaluate calls the model on ranks that are not in step: they wait for each other, or take one another's "
        "data. (Ctrl-C reaches all ranks at the same step; a file or a sample that can't be read is an error on all.) "
        "Threads that call the model come to it in another order on each rank, and several that fill a queue put the "
        "model's batches there in another order."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
try:
    for _ in range(1000):
        net(torch.randn(8, 4)).sum().backward()
except RuntimeError:
    torch.save(net.state_dict(), "stopped.pt")
print(net(torch.randn(8, 4)))
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
batches = iter(torch.randn(64, 4).split(8))
try:
    for _ in range(1000):
        try:
            net(next(batches)).sum().backward()
        except StopIteration:  # comes to all ranks alike
            batches = iter(torch.randn(64, 4).split(8))
except KeyboardInterrupt:  # comes to all ranks at the same step
    torch.save(net.state_dict(), "stopped.pt")
print(net(torch.randn(8, 4)))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        together: set[ast.AST] = {c for c in facts.source.calls if facts.resolver.holds(c.func, Wrapped)}
        together.update(loop.node for loop in facts.model_loops)
        together.update(facts.wraps.functional)
        alone = facts.writers.of_rank_0
        for handler in Handlers(facts.source, facts.names, facts.loops, facts.callers, together, alone).parting():
            yield Note(
                self.id,
                facts.source.span(handler),
                "an error can reach one rank alone, or each rank at another line; what follows needs all ranks in "
                "step, and would wait forever",
                "catch only what fails on all ranks, such as reading a file, and call the model behind the `try`; or "
                "end the script here (`raise`), after no more than printing and saving",
            )
        for call in _filling(facts):
            what = (
                "several threads or processes put batches into this queue, in no fixed order: another one on each rank"
            )
            todo = "pass what is taken out of it through `ddp.broadcast`, or start only one of them"
            yield Note(self.id, facts.source.span(call), what, todo)
        for call in facts.source.calls:
            if facts.names.qualified(call.func) in _THREADS and _calls_models(facts, call):
                yield Note(
                    self.id,
                    facts.source.span(call),
                    "this thread calls a wrapped model, which takes all ranks, and threads come to it in another order "
                    "on each",
                    "call it in the main thread, or wait for the thread (`join`) before another one calls a model",
                )


_THREADS = frozenset({"threading.Thread", "threading.Timer"})


def _calls_models(facts: Facts, call: ast.Call) -> bool:
    """Whether a thread is given a wrapped model, or a function that comes to one, to call."""
    target = keyword(call, "target") or argument(call, 1, "function")
    roles = facts.resolver.roles(target) if target is not None else ()
    functions = [role.definition for role in roles if isinstance(role, Function)]
    return any(isinstance(role, Wrapped) for role in roles) or facts.needing_all.inside(*functions)


def _filling(facts: Facts) -> list[ast.Call]:
    """The calls by which several threads or processes put what a model gets into one queue."""
    putting = [n for n in facts.loops.reached(*facts.threads.repeated) if isinstance(n, ast.Call) and _is(n, "put")]
    if not putting:
        return []
    models = (call for call in facts.source.calls if facts.resolver.holds(call.func, Wrapped))
    given = [each for call in models for each in given_to(call)]
    taking = {call for call in facts.source.calls if _is(call, "get")}
    fed = {queue for call in facts.reaching.reached(given, taking) for queue in _queues(facts, call)}
    return sorted((call for call in putting if not fed.isdisjoint(_queues(facts, call))), key=lambda call: call.lineno)


def _is(call: ast.expr, method: str) -> bool:
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") in (method, f"{method}_nowait")


def _queues(facts: Facts, call: ast.expr) -> set[ast.expr]:
    """The calls that make the queue whose method is called."""
    queue: ast.expr = call.func.value  # type: ignore[attr-defined]
    made = (maker for each in (queue, *facts.threads.given(queue)) for maker in facts.provenance.of(each))
    return {each for each in made if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("Queue")}
