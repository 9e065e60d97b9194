"""DDP019: names and seeds made of the clock."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Function
from dp2ddp.analysis.roles.libraries import loads_whole_batches
from dp2ddp.rewrite.edits import Finding, InsertBefore, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import keyword
from dp2ddp.source.program import FunctionNode

# What takes a seed from the system unless given one: behind `ddp.setup()` the same on every rank, but for threads and
# workers. (A torch.Generator does not.)
_SEEDS = frozenset({"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"})
_RESEEDING = frozenset({"random.seed", "numpy.random.seed", "torch.seed", "torch.random.seed"})

_FOR_CHILDREN = "give it a number that all ranks have: which of them it is, for instance"


class IdentityRule(Rule):
    """A path or a seed that is made of the time, a process id or a random name is rank 0's on every rank."""

    id = "DDP019"
    title = "Let rank 0 choose names and seeds"
    effect = "lets one process decide for all"
    parallel = True
    why = (
        "Each rank has a clock, a process id and random names of its own. A folder named after the time may be another "
        "one on another rank, which then looks for rank 0's checkpoint where it isn't; a seed taken from the clock "
        "makes the ranks diverge. `ddp.broadcast` gives all ranks rank 0's. A generator that takes its seed from the "
        "system stays as it is: behind `ddp.setup()` it begins alike on every rank. So do times that are only printed, "
        "tell how long something took, or name what is only written, which rank 0 does; and temporary files and "
        "folders, which each rank fills and deletes itself."
    )
    examples = (
        Example(
            before="""\
import os
import time
import torch
import torch.nn as nn

torch.manual_seed(int(time.time()))
net = nn.DataParallel(nn.Linear(4, 2))
run_dir = os.path.join("runs", time.strftime("%m-%d_%H-%M-%S"))
os.makedirs(run_dir)
torch.save(net.state_dict(), os.path.join(run_dir, "net.pt"))
net.load_state_dict(torch.load(os.path.join(run_dir, "net.pt")))
""",
            after="""\
import os
import time
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

torch.manual_seed(int(ddp.broadcast(time.time())))
net = nn.DataParallel(nn.Linear(4, 2))
run_dir = os.path.join("runs", ddp.broadcast(time.strftime("%m-%d_%H-%M-%S")))
os.makedirs(run_dir)
torch.save(net.state_dict(), os.path.join(run_dir, "net.pt"))
net.load_state_dict(torch.load(os.path.join(run_dir, "net.pt")))
""",
        ),
    )
    valid = (
        Example("""\
import os
import tempfile
import time
import numpy as np
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
generator = torch.Generator()  # begins with the same seed in every process
rng = np.random.default_rng()  # so does this, behind `ddp.setup()`
start = time.time()
with tempfile.TemporaryDirectory() as folder:  # filled and deleted by each rank itself
    torch.save(net.state_dict(), os.path.join(folder, "net.pt"))
print(time.strftime("%H:%M"), time.time() - start)
torch.save({"net": net.state_dict(), "seconds": time.time() - start}, "net.pt")
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        beside = _seeds_beside(facts)
        yield from self._own(facts, {part for seed in beside for part in ast.walk(seed)})
        for one in facts.source.calls:
            if facts.names.qualified(one.func) not in _SEEDS or not _is_bare(one) or not facts.before_launch(one):
                continue
            if one not in facts.per_sample and one not in facts.divergent.nodes and not _is_taken_over(facts, one):
                yield self._shared(facts, one)
        for seed in beside:
            what = (
                "a thread or process of this rank's takes a seed that is another one on each rank: so is what it makes"
            )
            yield Note(self.id, facts.source.span(seed), what, _FOR_CHILDREN)
        for call in facts.own_values.files:
            yield Note(
                self.id,
                facts.source.span(call),
                "each rank makes a temporary file or folder of its own, and a line that also writes other files, as "
                "rank 0 alone, writes there; the others don't find it",
                "make one that all ranks share: `folder = ddp.broadcast(tempfile.mkdtemp())`",
            )
        inside = _in_workers(facts)
        for call in facts.source.calls:
            if facts.names.qualified(call.func) in _RESEEDING and _is_bare(call) and call in inside:
                yield Note(
                    self.id,
                    facts.source.span(call),
                    "takes a seed from the system, another one on each rank",
                    "give it a number, or `ddp.broadcast(...)` of one",
                )

    def _own(self, facts: Facts, seeding: Collection[ast.AST]) -> Iterator[Finding]:
        """Values of a rank's own; those in `seeding` are noted as a whole."""
        starts = {value: _start(facts, value) for value in facts.own_values.values}
        for text, launch in dict.fromkeys((ast.unparse(v), s) for v, s in starts.items() if s is not None):
            span, reason = facts.source.span(launch), "what each rank has worked out above is rank 0's from here on"
            yield InsertBefore(self.id, span, reason, [f"{text} = ddp.broadcast({text})"])
        bodies = (entry.body for entry in facts.source.entry_trees if facts.threads.started)
        called = {node for body in bodies for node in facts.launch_finder.effects.runs(*body)}
        for value in starts:
            if value in seeding:
                continue
            if called and value not in called:
                what = "a thread or process of this rank's may come here, and has another one on each rank"
                yield Note(self.id, facts.source.span(value), what, _FOR_CHILDREN)
            elif starts[value] is None and value not in facts.divergent.nodes:
                yield self._shared(facts, value)

    def _shared(self, facts: Facts, value: ast.expr) -> Finding:
        """Rank 0's on every rank; where there are no ranks yet, nobody can tell."""
        span = facts.source.span(value)
        if facts.before_launch(value):
            what = "is worked out before the processes start, by each of them: another one on each rank"
            todo = "give it a fixed value, or work it out below `ddp.setup()` and broadcast it"
            return Note(self.id, span, what, todo)
        reason = "each rank would get a different one, and then look elsewhere or draw other numbers"
        return ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})


def _is_taken_over(facts: Facts, generator: ast.Call) -> bool:
    """Whether a module's name holds a generator that nothing has drawn from before the processes start:
    `ddp.setup()` gives it rank 0's state, but not what each rank has drawn by then."""
    above = facts.source.parent(generator)
    if not isinstance(above, ast.Assign) or not isinstance(facts.source.parent(above), ast.Module):
        return False
    held = {target.id for target in above.targets if isinstance(target, ast.Name)}
    is_known = len(held) == len(above.targets) and facts.before_launch(generator)
    return is_known and not any(
        _uses(node, held) and facts.before_launch(node) and not _is_seeding(facts.source.parent(node))
        for node in facts.source.nodes
        if isinstance(node, (ast.expr, ast.stmt))
    )


def _uses(node: ast.expr | ast.stmt, held: Collection[str]) -> bool:
    """Whether one of these names is read here, in its own module or another; or becomes another name there."""
    if isinstance(node, ast.ImportFrom):
        return any(each.name in held and each.asname not in (None, each.name) for each in node.names)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
    return name in held and isinstance(getattr(node, "ctx", None), ast.Load)


def _is_seeding(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "seed"


def _start(facts: Facts, value: ast.expr) -> ast.stmt | None:
    """The statement at which the processes start, where an attribute may become rank 0's at once that is set above it,
    in any case: `args.save = time.ctime()`."""
    launch = facts.launches[0].statement if len(facts.launches) == 1 and facts.launches[0].test is None else None
    if launch is None or not isinstance(value, ast.Attribute) or not isinstance(value.value, ast.Name):
        return None
    name, scope = value.value.id, facts.provenance.scope
    blocks = (facts.launches[0].entry, facts.source.function(launch))
    is_known = name in facts.launches[0].visible and scope(name, launch) is scope(name, value)
    above = (
        n for n in facts.source.nodes if isinstance(n, ast.Assign) and ast.unparse(value) in map(ast.unparse, n.targets)
    )
    is_set = any(
        facts.source.parent(one) in blocks and scope(name, one) is scope(name, value) and facts.before_launch(one)
        for one in above
    )
    return launch if is_known and is_set else None


def _seeds_beside(facts: Facts) -> list[ast.Call]:
    """Where threads and processes that the script starts seed by what each rank has for itself."""
    does, name = facts.catalogue.does, facts.names.qualified
    inside = [each for each in facts.loops.reached(*facts.threads.started) if isinstance(each, ast.Call)]
    seeding = [each for each in inside if does(name(each.func), "seeds")]
    own = {call for call in facts.source.calls if does(name(call.func), "own")} if seeding else set()
    reached = facts.reaching.reached
    found = [call for call in seeding if reached(call.args, own)]
    return found + [
        call for call in inside if name(call.func) in _SEEDS and _is_bare(call) and call in facts.per_sample
    ]


def _in_workers(facts: Facts) -> set[ast.AST]:
    """What loaders' workers run as they start, where all ranks' workers load all rows."""
    loaders = {call: given for call in facts.source.calls if (given := keyword(call, "worker_init_fn")) is not None}
    functions = [
        {role.definition for role in facts.resolver.roles(given) if isinstance(role, Function)}
        for call, given in loaders.items()
        if loads_whole_batches(call)
    ]
    return set(facts.loops.reached(*set[FunctionNode]().union(*functions)))


def _is_bare(call: ast.Call) -> bool:
    """Whether no seed is given."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(value, ast.Constant) and value.value is None for value in values)
