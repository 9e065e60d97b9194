"""DDP023: ask for the job's devices."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from dp2ddp.analysis.bound_once import only_value
from dp2ddp.analysis.control.ways import alternatives
from dp2ddp.analysis.device_names import counts_visible, reads_visible
from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.visible import means_all
from dp2ddp.rewrite.edits import Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule

_ASKS = ("torch.cuda.device_count", "torch.accelerator.device_count")


class DeviceCountRule(Rule):
    """`torch.cuda.device_count()` becomes `ddp.device_count()`: the number of ranks, where there are several."""

    id = "DDP023"
    title = "Ask how many devices the job has"
    effect = "asks how many devices the job has"
    why = (
        "A script that asks for the number of GPUs means the job's, and with one process per GPU each rank sees "
        "only one. So guards such as `if torch.cuda.device_count() > 1:` stay, and ask about the job, as does "
        "whatever is computed with the number. Each rank can see for itself whether there is a GPU at all; what "
        "it prints about a GPU is about its own. Where the script computes something from all GPUs, a note says "
        "that a rank sees only one. Beside a script's own DistributedDataParallel the original's number is passed "
        "on, for runs that start no ranks."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn

net = nn.Linear(4, 2)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    net = nn.DataParallel(net)
batch_size = 64 * max(1, torch.cuda.device_count())
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.Linear(4, 2)
if ddp.device_count() > 1:
    print("Let's use", ddp.device_count(), "GPUs!")
    net = nn.DataParallel(net)
batch_size = 64 * max(1, ddp.device_count())
""",
        ),
        Example(
            before="""\
import torch
import torch.nn as nn

net = nn.Linear(4, 2)
several = torch.cuda.device_count() > 1
if several:
    net = nn.DataParallel(net, device_ids=[0, 1])
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.Linear(4, 2)
several = ddp.device_count() > 1
if several:
    net = nn.DataParallel(net, device_ids=[0, 1])
""",
        ),
        Example("""\
import torch
import torch.nn as nn

memory = 0
for i in range(torch.cuda.device_count()):  # noted: on a rank that is one GPU's
    memory += torch.cuda.get_device_properties(i).total_memory
batch_size = memory >> 28
net = nn.DataParallel(nn.Linear(4, 2))
"""),
        Example(
            before="""\
import torch
import torch.nn as nn

count = torch.cuda.device_count()
found = [torch.cuda.get_device_properties(i) for i in range(count)]
for i in range(count):
    print(i, found[i].name)
net = nn.DataParallel(nn.Linear(4, 2))
batch_size = 64 * count
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

count = ddp.device_count()
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
for i in range(torch.cuda.device_count()):
    print(i, found[i].name)
net = nn.DataParallel(nn.Linear(4, 2))
batch_size = 64 * count
""",
        ),
        Example(
            allow_ddp=True,
            before="""\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


def worker(gpu, args):
    net = nn.Linear(4, 2)
    if args.distributed:
        dist.init_process_group("nccl", rank=gpu)
        net = nn.parallel.DistributedDataParallel(net.cuda())
    elif args.gpus > 1:
        net = nn.DataParallel(net).cuda()


def main(args):
    args.gpus = torch.cuda.device_count()
    if args.distributed:
        mp.spawn(worker, nprocs=args.gpus, args=(args,))
    else:
        worker(None, args)
""",
            after="""\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import dp2ddp_runtime as ddp


def worker(gpu, args):
    net = nn.Linear(4, 2)
    if args.distributed:
        dist.init_process_group("nccl", rank=gpu)
        net = nn.parallel.DistributedDataParallel(net.cuda())
    elif args.gpus > 1:
        net = nn.DataParallel(net).cuda()


def main(args):
    args.gpus = ddp.device_count(torch.cuda.device_count())
    if args.distributed:
        mp.spawn(worker, nprocs=args.gpus, args=(args,))
    else:
        worker(None, args)
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn


def main():
    ngpus = torch.cuda.device_count()
    worker(0, ngpus)


def worker(gpu, ngpus):  # which it doesn't read
    net = nn.DataParallel(nn.Linear(4, 2))
"""),
        Example("""\
import torch
import torch.nn as nn

# Whether there is a GPU at all each rank sees itself.
device = "cuda" if torch.cuda.device_count() > 0 else "cpu"
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1]).to(device)
for i in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_name(i))
memory = sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))
print(f"{memory} bytes")
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        given = (wrap.device_ids for wrap in facts.wraps.models)
        gone = {part for ids in given if ids is not None and means_all(facts, ids) for part in ast.walk(ids)}
        for call in facts.source.calls:
            if not _asks(facts, call) or call in gone or _whether_any(facts, call) or _is_unread(facts, call):
                continue
            loop = _over_devices(facts, call)
            if loop is not None:
                yield from _told(facts, call, loop)
            if loop is not None or _is_index(facts, call):
                continue
            kept = _kept(facts, call)
            here = (use for use in kept if facts.source.module(use) is facts.source.module(call))
            seen = [use for use in here if _over_devices(facts, use) is not None or _is_index(facts, use)]
            for use in seen:
                loop = _over_devices(facts, use)
                if loop is not None:
                    yield from _told(facts, use, loop)
            if kept and len(seen) == len(kept):
                continue
            for use in seen:
                text = facts.source.segment(call)
                yield ReplaceExpr(self.id, facts.source.span(use), "a rank numbers the GPUs that it sees", text)
            span = facts.source.span(call)
            reason = "each rank sees only one GPU"
            if facts.beside_ddp:  # the script's own distributed training goes on with its own number
                yield ReplaceExpr(self.id, span, reason, "ddp.device_count(__h_it__)", {"it": span})
            else:
                yield ReplaceExpr(self.id, span, reason, "ddp.device_count()")
        for read in _names_own_gpu(facts):
            what = "CUDA_VISIBLE_DEVICES names this rank's GPU alone here"
            yield Note(self.id, facts.source.span(read), what, "read it above `ddp.setup()`")


def _asks(facts: Facts, node: ast.Call) -> bool:
    counts = counts_visible(facts.names, node) and not facts.before_launch(node)
    return counts or facts.names.qualified(node.func) in _ASKS


def _names_own_gpu(facts: Facts) -> Iterator[ast.expr]:
    """Where a script reads which GPUs are visible, behind the start; not where it counts or prints them."""
    for node in facts.source.nodes:
        if isinstance(node, ast.expr) and reads_visible(facts.names, node) and not facts.before_launch(node):
            calls = [above for above in facts.source.ancestors(node) if isinstance(above, ast.Call)]
            prints = (facts.names.qualified(call.func) == "builtins.print" for call in calls)
            if not any(prints) and not any(counts_visible(facts.names, call) for call in calls):
                yield node


def _whether_any(facts: Facts, call: ast.Call) -> bool:
    """Whether a call only asks if there is a GPU, and not for a wrap: each rank has one, or, on the CPU, none has."""
    wraps = {wrap.call for wrap in facts.wraps.models}
    for guard in facts.source.ancestors(call):
        if isinstance(guard, (ast.If, ast.IfExp)) and any(node is call for node in ast.walk(guard.test)):
            body = guard.body if isinstance(guard, ast.If) else [guard.body]
            if any(node in wraps for part in body for node in ast.walk(part)):
                return False
    above = facts.source.parent(call)
    if isinstance(above, ast.Compare) and above.left is call and len(above.ops) == 1:
        limit, operator = above.comparators[0], above.ops[0]
        value = limit.value if isinstance(limit, ast.Constant) else None
        return (value == 0 and isinstance(operator, (ast.Gt, ast.NotEq, ast.Eq, ast.LtE))) or (
            value == 1 and isinstance(operator, (ast.GtE, ast.Lt))
        )
    is_test = isinstance(above, (ast.If, ast.IfExp, ast.While)) and above.test is call
    return is_test or (isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not))


def _kept(facts: Facts, value: ast.expr) -> list[ast.expr]:
    """Where a value is used that is kept under a name, or as an attribute that the program sets nowhere else."""
    target = _target(facts, value)
    if isinstance(target, ast.Name):
        return [n for n in _loads(facts, target.id) if only_value(facts, n) is value]
    if not isinstance(target, ast.Attribute):
        return []
    parts = [n for n in facts.source.nodes if isinstance(n, ast.Attribute) and n.attr == target.attr]
    is_once = not any(n is not target and isinstance(n.ctx, ast.Store) for n in parts)
    return [n for n in parts if n is not target] if is_once else []


def _is_unread(facts: Facts, value: ast.expr) -> bool:
    """Whether nothing reads a value that a function keeps: its name is only given to parameters that nothing reads."""
    choice = facts.source.parent(value)
    if isinstance(choice, ast.IfExp) and value is not choice.test:
        value = choice
    name, function = _target(facts, value), facts.source.function(value)
    if function is None or not isinstance(name, ast.Name) or name.id not in facts.source.local_names(function):
        return False
    for use in _loads(facts, name.id):
        call = facts.source.parent(use)
        given = facts.resolver.arguments(call) if isinstance(call, ast.Call) else ()
        taking = [(taker, parameter) for taker, parameter, argument in given if argument is use]
        read = [n for taker, name in taking for n in ast.walk(taker) if isinstance(n, ast.Name) and n.id == name]
        if not all(_is_of_own_ddp(facts, each) for each in (read if taking else [use])):
            return False
    return True


def _is_of_own_ddp(facts: Facts, node: ast.expr) -> bool:
    """Whether only the script's own distributed training comes to a place: `args.distributed and rank % n == 0`."""
    if not facts.beside_ddp:
        return False
    span = facts.source.span(node)
    above = (each for each in facts.source.ancestors(node) if isinstance(each, ast.BoolOp))
    asked = (each.values[0] for each in above if isinstance(each.op, ast.And))
    are_off = [set(map(ast.unparse, alternatives(launch.test))) for launch in facts.launches]
    is_off = any(all(ast.unparse(each) in off for off in are_off) for each in asked)
    return is_off or any(own.contains(span) for own in facts.own_ddp.spans)


def _target(facts: Facts, value: ast.expr) -> ast.expr | None:
    """What alone a value is kept as."""
    above = facts.source.parent(value)
    return above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None


def _loads(facts: Facts, name: str) -> list[ast.Name]:
    names = (n for n in facts.source.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return [n for n in names if n.id == name]


def _is_index(facts: Facts, count: ast.expr) -> bool:
    """Whether one less than a number of devices is that of the last one: `get_device_name(count - 1)`."""
    last = facts.source.parent(count)
    if not (isinstance(last, ast.BinOp) and isinstance(last.op, ast.Sub) and last.left is count):
        return False
    return any(_names_device(facts, place) for place in (last, *_kept(facts, last)))


def _names_device(facts: Facts, node: ast.expr) -> bool:
    above = facts.source.parent(node)
    return isinstance(above, ast.Call) and (facts.names.qualified(above.func) or "").startswith("torch.cuda.")


def _over_devices(facts: Facts, call: ast.expr) -> ast.For | ast.comprehension | None:
    """The loop over the devices that a rank sees whose end a call is: `get_device_name(i)` for each of them."""
    counted = facts.source.parent(call)
    loop = facts.source.parent(counted) if counted is not None else None
    if not (isinstance(counted, ast.Call) and facts.names.qualified(counted.func) == "builtins.range"):
        return None
    if not isinstance(loop, (ast.For, ast.comprehension)) or not isinstance(loop.target, ast.Name):
        return None
    inside = facts.source.parent(loop) if isinstance(loop, ast.comprehension) else loop
    uses = [n for n in ast.walk(inside or loop) if isinstance(n, ast.Name) and n.id == loop.target.id]
    return loop if any(_names_device(facts, use) or _picks_from_devices(facts, use) for use in uses) else None


def _picks_from_devices(facts: Facts, index: ast.expr) -> bool:
    """Whether something is picked of what a loop over the devices found out: `x[i].name`."""
    above = facts.source.parent(index)
    if not isinstance(above, ast.Subscript) or above.slice is not index or not isinstance(above.value, ast.Name):
        return False
    listed = only_value(facts, above.value)
    if not isinstance(listed, ast.ListComp) or not isinstance(listed.generators[0].iter, ast.Call):
        return False
    return any(_over_devices(facts, end) is listed.generators[0] for end in listed.generators[0].iter.args)


def _told(facts: Facts, call: ast.expr, loop: ast.For | ast.comprehension) -> Iterator[Note]:
    """A note, unless what a loop finds out about the devices is only shown."""
    whole = facts.source.statement(loop)
    block = _without_upkeep(facts, [*loop.body, *loop.orelse]) if isinstance(loop, ast.For) else [whole]
    if not facts.display.only_tells(block, whole):
        yield Note(
            DeviceCountRule.id,
            facts.source.span(call),
            "loops over the GPUs that a process sees; a rank sees only its own, so the result is not the original's, "
            "and may differ between ranks",
            "combine it below `ddp.setup()` (`sum(ddp.gather(x))` is the sum over the ranks), or give the number as an "
            "argument",
        )


def _without_upkeep(facts: Facts, block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """A block without what it has each device do, as `torch.cuda.synchronize(i)`: a rank's own does so."""
    found: list[ast.stmt] = []
    for statement in block:
        if isinstance(statement, ast.With) and all(_is_upkeep(facts, item.context_expr) for item in statement.items):
            found += _without_upkeep(facts, statement.body)
        elif not (isinstance(statement, ast.Expr) and _is_upkeep(facts, statement.value)):
            found.append(statement)
    return found


def _is_upkeep(facts: Facts, value: ast.expr) -> bool:
    path = facts.names.qualified(value.func) if isinstance(value, ast.Call) else None
    return path is not None and path.startswith("torch.cuda.") and "seed" not in path
