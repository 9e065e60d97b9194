"""DDP023: ask for the job's devices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule

_ASKS = ("torch.cuda.device_count", "torch.accelerator.device_count")


class DeviceCountRule(Rule):
    """`torch.cuda.device_count()` becomes `ddp.device_count()`: the number of ranks, where there are several."""

    id = "DDP023"
    title = "Ask how many devices the job has"
    effect = "asks how many devices the job has"
    why = (
        "A script that asks for the number of GPUs means those that it trains on. With one process per GPU these "
        "are the ranks: a launcher may show each of them one GPU only (SLURM's `--gpus-per-task=1`), and several "
        "machines have more than one of them sees. So guards such as `if torch.cuda.device_count() > 1:` stay, and "
        "ask about the job. Where the script names its `device_ids`, only such questions are changed: a number "
        "that is computed with counts all visible GPUs there. Whether there is a GPU at all, to choose between "
        "'cuda' and 'cpu', each rank sees itself; beside a script's own DistributedDataParallel its number is handed "
        "over, for where no ranks are started."
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

# Whether there is a GPU at all each rank sees itself.
device = "cuda" if torch.cuda.device_count() > 0 else "cpu"
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1]).to(device)
workers = 4 * torch.cuda.device_count()  # all that are visible, not only these two
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        given = {ids for ids, _ in facts.wraps.device_ids}
        all_devices = all(any(_asks(facts, part) for part in ast.walk(ids)) for ids in given)
        gone = {part for wrap in facts.wraps.models for ids in (wrap.device_ids,) if ids for part in ast.walk(ids)}
        for call in facts.source.calls:
            if not _asks(facts, call) or call in gone or _whether_any(facts, call):
                continue
            if all_devices or _decides(facts, call):
                span = facts.source.span(call)
                reason = "the ranks, where there are several"
                if facts.beside_ddp:  # the script's own distributed training goes on with its own number
                    yield ReplaceExpr(self.id, span, reason, "ddp.device_count(__h_it__)", {"it": span})
                else:
                    yield ReplaceExpr(self.id, span, reason, "ddp.device_count()")


def _asks(facts: Facts, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and facts.names.qualified(node.func) in _ASKS


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


def _decides(facts: Facts, call: ast.Call) -> bool:
    """Whether a call stands in a test, or in a comparison."""
    node: ast.AST = call
    for above in facts.source.ancestors(call):
        if isinstance(above, ast.Compare):
            return True
        if isinstance(above, (ast.If, ast.IfExp, ast.While, ast.Assert)) and node is above.test:
            return True
        if isinstance(above, (ast.stmt, ast.Call)):
            return False
        node = above
    return False
