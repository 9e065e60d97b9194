"""DDP019: names and seeds made of the clock."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import given_to, last_name

# Values of a rank's own that are timers, as a rule; a seed that is made of one is rank 0's.
_OWN = frozenset("time.time time.time_ns time.perf_counter os.getpid os.urandom builtins.id secrets.randbits".split())
_CLOCK = re.compile(r"time\.(time|now|gmtime|localtime)$")
_TIMERS = frozenset({"time.time", "time.monotonic", "time.perf_counter"})
#: Where functions are given the time that they write out.
_GIVEN = {"strftime": 1, "ctime": 0, "asctime": 0, "gmtime": 0, "localtime": 0, "fromtimestamp": 0}
_TEXTS = {"str", "format", "tuple", *_GIVEN}  # which make another value of one
_SHOWS = frozenset("print write log log_string debug info warning error critical".split())
_REASON = "each rank would get a different one, and then look elsewhere or draw other numbers"


class ClocksRule(Rule):
    """A date, a time as text or a random name is rank 0's on every rank; so is a clock in a seed."""

    id = "DDP019"
    title = "Let rank 0 choose names and seeds"
    effect = "lets one process decide for all"
    why = (
        "Each rank has its own clock and random names. A folder named after the time may be another one on each rank, "
        "and a seed taken from the clock makes the ranks diverge. `ddp.broadcast` gives all ranks what rank 0 had at "
        "this line, and waits for nobody. What is only printed or logged stays, and so do timers, but a test of one "
        "gets a note, as ranks may part there."
    )
    examples = (
        Example(
            diff="""\
 import os
 import time
 import torch
 import torch.nn as nn
+import dp2ddp_runtime as ddp

-torch.manual_seed(int(time.time()))
+torch.manual_seed(int(ddp.broadcast(time.time())))
 net = nn.DataParallel(nn.Linear(4, 2))
-run_dir = os.path.join("runs", time.strftime("%m-%d_%H-%M-%S"))
+run_dir = os.path.join("runs", ddp.broadcast(time.strftime("%m-%d_%H-%M-%S")))
 os.makedirs(run_dir)
 net.load_state_dict(torch.load(os.path.join(run_dir, "net.pt")))
"""
        ),
    )
    valid = (
        Example("""\
import time
import numpy as np
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
generator = torch.Generator()  # begins with the same seed in every process
rng = np.random.default_rng()  # so does this, behind `ddp.setup()`
start = time.time()
print(time.time() - start)
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        shared: list[ast.Call] = []
        for call in facts.source.calls:
            path = facts.qualified(call.func)
            is_own = path in _OWN and (_is_in_seed(facts, call) or _is_in_text(facts, call, path))
            is_shared = is_own or facts.catalogue.does(path, "names")
            is_used = not isinstance(facts.source.parent(call), ast.Expr)  # `cv2.waitKey(0)` alone waits
            inside = any(above in shared for above in facts.source.ancestors(call))
            if not is_shared or not is_used or inside:
                continue
            if not (_is_given_a_time(facts, call) or _is_timer(facts, call) or _is_shown(facts, call)):
                shared.append(call)
                span = facts.span(call)
                yield ReplaceExpr(self.id, span, _REASON, "ddp.broadcast(__h_it__)", {"it": span})
        for call in facts.calls(_TIMERS):
            if _decides(facts, call):
                what = "each rank has a clock of its own, and ranks that decide by it may part here"
                todo = "let rank 0's decide, here and where the other time is taken: `ddp.broadcast(time.time())`"
                yield Note(self.id, facts.span(call), what, todo)


def _is_in_seed(facts: Facts, call: ast.Call) -> bool:
    """Whether a value is given to what seeds, or to or under a name that says `seed`."""
    around, statement = facts.source.ancestors(call), facts.source.statement(call)
    calls = [each for each in around if isinstance(each, ast.Call)]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [*map(last_name, targets), *(name for each in calls for name in _said(each))]
    seeds = any(facts.catalogue.does(facts.qualified(each.func), "seeds") for each in calls)
    return seeds or any("seed" in name.lower() for name in names)


def _said(call: ast.Call) -> list[str]:
    """What a call says of itself: `set_seed(...)`, `run(seed=...)`, `add_argument("--seed", default=...)`."""
    texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [last_name(call.func), *texts, *(each.arg for each in call.keywords if each.arg)]


def _is_in_text(facts: Facts, call: ast.Call, path: str | None) -> bool:
    """Whether a time becomes a text by itself: `str(int(time.time()))`, `"run%d" % time.time()`."""
    above = facts.source.parent(call)
    above = facts.source.parent(above) if isinstance(above, ast.Call) and last_name(above.func) == "int" else above
    is_call = isinstance(above, ast.Call) and last_name(above.func) in ("str", "format")
    is_text = is_call or isinstance(above, ast.FormattedValue) or isinstance(getattr(above, "op", None), ast.Mod)
    return is_text and path in ("time.time", "time.time_ns")


def _is_given_a_time(facts: Facts, call: ast.Call) -> bool:
    """Whether it only writes out a time that it is given, and that isn't now: `strftime("%H:%M", gmtime(seconds))`."""
    given = given_to(call)[_GIVEN.get(last_name(call.func), 9) :]
    inner = [n for each in given for n in ast.walk(each) if isinstance(n, ast.Call) and not given_to(n)]
    now = (_CLOCK.search(facts.qualified(n.func) or "") and not _is_timer(facts, n) for n in inner)
    is_name = last_name(call.func) == "strftime" and isinstance(given[-1] if given else None, ast.Name)
    return bool(given) and not is_name and not any(now)  # (nobody knows what a name holds)


def _is_timer(facts: Facts, call: ast.Call) -> bool:
    """Whether a time is subtracted, here or where its name stands in the file: it tells how long something took."""
    above = facts.source.parent(call)
    if isinstance(above, ast.BinOp):
        return isinstance(above.op, ast.Sub)
    if not isinstance(above, ast.Assign):
        return False
    module = facts.source.module(call)
    subtracted = (n for n in ast.walk(module) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub))
    sides = {ast.unparse(side) for each in subtracted for side in (each.left, each.right)}
    return any(ast.unparse(target) in sides for target in above.targets)


def _is_shown(facts: Facts, value: ast.expr, names: int = 2) -> bool:
    """Whether a value is only printed or logged, here or by the names that it gets, one after the other."""
    taker = _taker(facts, value)
    if isinstance(taker, ast.Call):
        name, above = last_name(taker.func), facts.source.parent(taker)
        is_shown = isinstance(above, ast.Expr) and (name in _SHOWS or "print" in name)  # `self.print_log(...)`
        return is_shown or isinstance(above, ast.Raise)
    if not names or not isinstance(taker, ast.Assign) or not isinstance(taker.targets[-1], ast.Name):
        return False
    name, function = taker.targets[-1].id, facts.source.function(value)
    scope = list(ast.walk(function or facts.source.module(value)))
    named = (n for n in scope if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
    loads = [each for each in named if facts.source.statement(each) is not taker]
    is_local = bool(loads or function) and len(taker.targets) == 1 and not any(isinstance(n, ast.Global) for n in scope)
    return is_local and all(_is_shown(facts, each, names - 1) for each in loads)


def _taker(facts: Facts, value: ast.expr) -> ast.AST:
    """The statement that a value is part of, as it is or as a text, or the call that takes it."""
    inner: ast.AST = value
    for above in facts.source.ancestors(value):
        is_text = inner is getattr(above, "func", None) or last_name(getattr(above, "func", above)) in _TEXTS
        if isinstance(above, ast.stmt) or (isinstance(above, ast.Call) and not is_text):
            return above
        inner = above
    return inner


def _decides(facts: Facts, call: ast.Call) -> bool:
    """Whether a clock stands in a comparison that a branch or a loop asks."""
    around = list(facts.source.ancestors(call))
    tests = (each.test for each in around if isinstance(each, (ast.If, ast.While)))
    return any(isinstance(each, ast.Compare) for each in around) and any(call in ast.walk(test) for test in tests)
