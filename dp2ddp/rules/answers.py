"""DDP022: what a user types."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import argument, is_main_guard

_READING = frozenset(
    "builtins.input getpass.getpass click.prompt click.confirm sys.stdin.read sys.stdin.readline "
    "sys.stdin.readlines cv2.waitKey cv2.waitKeyEx cv2.pollKey cv2.selectROI matplotlib.pyplot.ginput "
    "matplotlib.pyplot.waitforbuttonpress".split()
)
_END_OF_INPUT = frozenset({"builtins.EOFError", "builtins.Exception", "builtins.BaseException"})

_CAMERA = (
    "a camera gives its pictures to one process; the others get none, or different ones",
    "start this script with DP2DDP_NPROC=1, or read the camera on rank 0 alone and `ddp.broadcast` its pictures",
)


class AnswersRule(Rule):
    """What is typed is read by rank 0, and told to all ranks."""

    id = "DDP022"
    title = "Let rank 0 read what is typed"
    effect = "lets one process decide for all"
    parallel = True
    why = (
        "There is one terminal. If every rank asked, each would wait for an answer of its own, or find that nobody can "
        "type one. Rank 0 asks; `ddp.broadcast` gives all ranks the answer."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
if input("Go on from net.pt? [y/N] ").lower() == "y":
    net.load_state_dict(torch.load("net.pt"))
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
if ddp.broadcast(ddp.main_only(input)("Go on from net.pt? [y/N] ")).lower() == "y":
    net.load_state_dict(torch.load("net.pt"))
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
for input, target in [(torch.ones(8, 4), torch.zeros(8).long())]:  # a batch; nobody types
    nn.functional.cross_entropy(net(input), target).backward()
"""),
        Example("""\
import torch
import torch.nn as nn

def input(size):  # the script's own
    return torch.ones(size, 4)

net = nn.DataParallel(nn.Linear(4, 2))
print(net(input(8)))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for call in facts.source.calls:
            path = facts.names.qualified(call.func)
            if path == "cv2.VideoCapture" and _is_camera(argument(call, 0, "index")) and not _never_runs(facts, call):
                yield Note(self.id, facts.source.span(call), *_CAMERA)
            if path not in _READING or call in facts.per_sample or _never_runs(facts, call):
                continue
            if facts.before_launch(call):
                what = (
                    "is asked before the processes start, and then by each of them, of which only rank 0 gets an answer"
                )
                yield Note(
                    self.id, facts.source.span(call), what, "ask behind `ddp.setup()`, or take it as an argument"
                )
            else:
                yield from self._read_on_main(facts, call)

    def _read_on_main(self, facts: Facts, call: ast.Call) -> Iterator[Finding]:
        span = facts.source.span(call)
        if call in facts.divergent.nodes:
            what = "every rank that comes here would ask, and only rank 0 can be answered"
            todo = f'ask there alone: `{facts.source.brief(call)} if ddp.is_main() else ""`'
            yield Note(self.id, span, what, todo)
            return
        asking = facts.source.span(call.func)
        reason = "rank 0 asks, all ranks get the answer"
        # The prompt is every rank's: it may hold a number that is summed up over all of them.
        yield ReplaceExpr(self.id, asking, reason, "ddp.main_only(__h_f__)", {"f": asking})
        is_used = not isinstance(facts.source.parent(call), ast.Expr)
        if is_used and not facts.own_tests.contains(call):
            yield ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})
        if _ending_is_caught(facts, call):
            what = "where nobody can type anything, rank 0 alone comes to the handler; the others wait for its answer"
            yield Note(self.id, span, what, "ask nothing in such runs, by an option of the script, for instance")


def _is_camera(source: ast.expr | None) -> bool:
    """Whether it is the number of a camera, or its device file, and not a film."""
    is_number = isinstance(source, ast.Constant) and type(source.value) is int
    return is_number or (isinstance(source, ast.Constant) and str(source.value).startswith("/dev/"))


def _never_runs(facts: Facts, call: ast.Call) -> bool:
    """Whether a line only runs where its file is started, which it isn't."""
    is_started = facts.source.module(call) in facts.source.entry_trees
    return not is_started and any(is_main_guard(above) for above in facts.source.ancestors(call))


def _ending_is_caught(facts: Facts, call: ast.Call) -> bool:
    """Whether the script goes on where there is nothing to read."""
    inner: ast.AST = call
    for above in facts.source.ancestors(call):
        if isinstance(above, ast.Try) and inner in above.body:
            caught = (kind for handler in above.handlers for kind in _kinds(handler))
            if any(kind is None or facts.names.qualified(kind) in _END_OF_INPUT for kind in caught):
                return True
        inner = above
    return False


def _kinds(handler: ast.ExceptHandler) -> list[ast.expr | None]:
    """The exceptions that a handler is for; None stands for all."""
    return [*handler.type.elts] if isinstance(handler.type, ast.Tuple) else [handler.type]
