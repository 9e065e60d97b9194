"""DDP011: write once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import groupby

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Function, Wrapped
from dp2ddp.analysis.wraps.wraps import asks_for_type
from dp2ddp.rewrite.edits import Finding, InsertAfter, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import given_to

#: What is there behind `wandb.init()`.
_PARTS = ("wandb.config.", "wandb.run.")
#: Where a writer's reports lie.
_FOLDERS = frozenset({"log_dir", "logdir", "get_logdir"})


class OutputRule(Rule):
    """Trackers, windows and what writes files from C++ belong to rank 0. What writes by Python needs no change."""

    id = "DDP011"
    title = "Show and track from rank 0"
    effect = "writes files once"
    parallel = True
    why = (
        "Every rank runs every line. What Python writes, makes and removes is rank 0's alone after `ddp.setup`, "
        "whatever library does it, `print`, progress bars and `logging` are silenced on the other ranks, and "
        "matplotlib opens no window there: these lines stay. What goes to a server or another window, or is written "
        "from C++ (`cv2.imwrite`), the runtime can't see: on the other ranks `ddp.main_only` does nothing. A tracker's "
        "module that a file calls more than once is rank 0's by one line below the imports. What a data "
        "set writes for one sample, to read it faster the next time, is written by the rank that loads the sample."
    )
    examples = (
        Example(
            before="""\
import cv2
import os
import numpy as np
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter

net = nn.DataParallel(nn.Linear(4, 2))
os.makedirs("out", exist_ok=True)
cv2.imwrite("out/grey.png", np.zeros((4, 4)))
writer = SummaryWriter("out")
""",
            after="""\
import cv2
import os
import numpy as np
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
os.makedirs("out", exist_ok=True)
ddp.main_only(cv2.imwrite)("out/grey.png", np.zeros((4, 4)))
writer = ddp.main_only(SummaryWriter)("out")
""",
        ),
    )
    valid = (
        Example("""\
import json
import logging
import os
import torch.nn as nn
from PIL import Image
from tqdm import tqdm

net = nn.DataParallel(nn.Linear(4, 2))
os.makedirs("small", exist_ok=True)
for name in tqdm(open("names.txt").read().split()):
    Image.open(name).resize((8, 8)).save(f"small/{name}")
    logging.info("%s", name)
with open("log.json", "w") as log:
    json.dump({"epoch": 1}, log)
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        yield from self._once_a_file(facts, [*self._trackers(facts), *self._calls(facts)])
        yield from self._folders_of_reports(facts)
        yield from _animated(facts)

    def _calls(self, facts: Facts) -> Iterator[Finding]:
        for call in facts.source.calls:
            if not facts.in_fetch(call) and call not in facts.divergent.in_samples:
                yield from self._writing(facts, call)

    def _once_a_file(self, facts: Facts, found: Sequence[Finding]) -> Iterator[Finding]:
        """`wandb = ddp.main_only(wandb)` below the imports, where all that a file does with it would be edited."""
        noted = {each.span.start for each in found if isinstance(each, Note)}
        edited = {each.span.start for each in found} - noted
        for file in facts.source.files:
            for statement, name in _tracking(facts, file.tree):
                uses = [node for node in ast.walk(file.tree) if isinstance(node, ast.Name) and node.id == name]
                starts = {facts.source.span(node).start for node in uses}
                if len(starts & edited) > 1 and starts <= noted | edited:
                    found = [each for each in found if isinstance(each, Note) or each.span.start not in starts]
                    line = f"{name} = ddp.main_only({name})"
                    yield InsertAfter(self.id, facts.source.span(statement), f"{name} is rank 0's", [line])
        yield from found

    def _trackers(self, facts: Facts) -> Iterator[Finding]:
        """Trackers handed on, whoever calls what there; and their values, which are there on rank 0 alone."""
        for node in facts.source.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            path = facts.names.qualified(node)
            if path is None:
                continue
            span = facts.source.span(node)
            if isinstance(node, ast.Attribute) and f"{path}." in _PARTS:
                if self._is_told(facts, node):
                    whole = facts.source.span(node.value)
                    yield ReplaceExpr(self.id, whole, "rank 0 alone does this", "ddp.main_only(__h_f__)", {"f": whole})
                    continue
                what = f"`{path}` is read, and only rank 0 has started wandb"
                yield Note(self.id, span, what, "take these values from the script's own arguments")
            elif (
                facts.catalogue.does(f"{path}.*", "reports")
                and not path.startswith(_PARTS)
                and self._is_handed_on(facts, node)
            ):
                yield ReplaceExpr(self.id, span, "rank 0 alone does this", "ddp.main_only(__h_f__)", {"f": span})

    @staticmethod
    def _is_told(facts: Facts, node: ast.expr) -> bool:
        """Whether something is set in an object, or called of it, and nothing is read: `wandb.run.name = "x"`."""
        inner: ast.AST = node
        while isinstance(above := facts.source.parent(inner), (ast.Attribute, ast.Subscript)) and inner is above.value:
            inner = above
        if isinstance(above, ast.Call) and inner is above.func:
            return isinstance(facts.source.parent(above), ast.Expr)
        is_set = isinstance(getattr(inner, "ctx", None), ast.Store) and not isinstance(above, ast.AugAssign)
        return inner is not node and is_set

    @staticmethod
    def _is_handed_on(facts: Facts, node: ast.expr) -> bool:
        """Whether a value is given to a call, kept under another name or returned, and not only asked for its type."""
        around = (each for each in facts.source.ancestors(node) if not isinstance(each, (ast.List, ast.Tuple)))
        above = next(around, None)
        is_asked = (isinstance(above, ast.Call) and node is above.func) or (
            isinstance(above, ast.IfExp) and node is above.test
        )
        is_kept = isinstance(above, (ast.Call, ast.keyword, ast.Assign, ast.Dict, ast.IfExp, ast.Return, ast.arguments))
        return is_kept and not is_asked and not asks_for_type(facts.source, facts.names, node)

    def _folders_of_reports(self, facts: Facts) -> Iterator[Finding]:
        """`writer.log_dir`: rank 0 alone has a writer, and checkpoints go into its folder."""
        for node in facts.source.nodes:
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _FOLDERS):
                continue
            if not any(path.endswith(".SummaryWriter") for path in facts.writers.packages(node.value)):
                continue
            above = facts.source.parent(node)
            value = above if isinstance(above, ast.Call) and above.func is node else node
            if facts.on_all_ranks(value):
                span = facts.source.span(value)
                reason = "only rank 0 has a writer, and knows its folder"
                yield ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})

    def _writing(self, facts: Facts, call: ast.Call) -> Iterator[Finding]:
        """A call that writes a file, or reports elsewhere."""
        writing = facts.writers.of(call)
        if writing is None or not writing.native or any(map(facts.files.is_own, writing.names)):
            return
        if (facts.names.qualified(call.func) or "").startswith(_PARTS):
            return  # which `_trackers` sees to: on other ranks they aren't there
        span = facts.source.span(call.func)
        if writing.changes:
            what = "is opened to be read and changed, by every rank at once"
            todo = "open it for reading on all ranks, and for writing by `ddp.main_only(...)`"
            yield Note(self.id, facts.source.span(call), what, todo)
        elif writing.counts or isinstance(facts.source.parent(call), ast.Expr):
            yield ReplaceExpr(self.id, span, "rank 0 alone does this", "ddp.main_only(__h_f__)", {"f": span})


def _tracking(facts: Facts, tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """The names of modules that report elsewhere, each with the last of the imports that it stands among."""
    for _, group in groupby(tree.body, key=lambda each: isinstance(each, (ast.Import, ast.ImportFrom))):
        imports = list(group)
        for alias in (alias for each in imports if isinstance(each, ast.Import) for alias in each.names):
            if facts.catalogue.does(f"{alias.name}.*", "reports"):
                yield imports[-1], alias.asname or alias.name


def _animated(facts: Facts) -> Iterator[Note]:
    """Animations that call the model for each frame, where a window, which rank 0 alone has, calls for frames."""
    shows = any(facts.names.qualified(call.func) == "matplotlib.pyplot.show" for call in facts.source.calls)
    for call in facts.source.calls if shows else ():
        if not (facts.names.qualified(call.func) or "").startswith("matplotlib.animation."):
            continue
        roles = [role for each in given_to(call) for role in facts.resolver.roles(each)]
        inside = facts.loops.reached(*(role.definition for role in roles if isinstance(role, Function)))
        if any(isinstance(node, ast.Call) and facts.resolver.holds(node.func, Wrapped) for node in inside):
            what = "its frames call the model, and only rank 0 has the window that asks for them"
            todo = "compute the frames before, or call the model inside the wrapper (`.module`) there"
            yield Note("DDP011", facts.source.span(call), what, todo)
