"""DDP024: signal handlers that each rank runs by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles.kinds import Function
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Decisions, Example, Rule

_TIMERS = frozenset({"signal.SIGALRM", "signal.SIGVTALRM", "signal.SIGPROF"})
_COMMANDS = ("os.system", "os.popen", "os.exec", "os.spawn", "os.kill", "subprocess.")


class SignalsRule(Rule):
    """A handler that doesn't mean the same when every rank runs it is named; it stays as it is."""

    id = "DDP024"
    title = "Point out signal handlers that each rank runs by itself"
    parallel = True
    why = (
        "Signals are passed on to all ranks, and a handler runs on all of them together, after the same step: one that "
        "prints, saves, sets a flag or ends the script is fine. A command in it (SLURM's `scontrol requeue`) runs once "
        "for each rank. A timer (`SIGALRM`) is each rank's own and comes to each at another line."
    )
    examples = (
        Example(
            before="""\
import os
import signal
import torch
import torch.nn as nn

def requeue(number, frame):
    torch.save(net.state_dict(), "last.pt")
    os.system("scontrol requeue $SLURM_JOB_ID")

net = nn.DataParallel(nn.Linear(4, 2))
signal.signal(signal.SIGUSR1, requeue)
for _ in range(1000):
    net(torch.randn(8, 4)).sum().backward()
""",
        ),
    )
    valid = (
        Example("""\
import signal
import sys
import torch
import torch.nn as nn

def save_and_leave(number, frame):
    torch.save(net.state_dict(), "last.pt")
    sys.exit(0)

net = nn.DataParallel(nn.Linear(4, 2))
signal.signal(signal.SIGTERM, save_and_leave)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
for _ in range(1000):
    net(torch.randn(8, 4)).sum().backward()
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for call in facts.source.calls:
            if facts.names.qualified(call.func) != "signal.signal" or len(call.args) != 2:
                continue
            number, handler = call.args
            bodies = [role.definition for role in facts.resolver.roles(handler) if isinstance(role, Function)]
            if bodies and facts.names.qualified(number) in _TIMERS:
                yield Note(
                    self.id,
                    facts.source.span(call),
                    "each rank has a timer of its own, which comes to each at another line; what its handler changes "
                    "makes the ranks diverge, and they wait for each other",
                    "count steps instead, or let rank 0's clock decide: ddp.broadcast(time.time())",
                )
            for body in bodies:
                yield from self._commands(facts, body)

    def _commands(self, facts: Facts, body: ast.AST) -> Iterator[Finding]:
        statements = body.body if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)) else ()
        for node in facts.loops.reached(*statements):
            if isinstance(node, ast.Call) and (facts.names.qualified(node.func) or "").startswith(_COMMANDS):
                yield Note(
                    self.id,
                    facts.source.span(node),
                    "a signal's handler runs on every rank, and this command as often",
                    "put `if ddp.is_main():` around it",
                )
