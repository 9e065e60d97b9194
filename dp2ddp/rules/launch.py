"""DDP001: start the processes."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.launch import Launch
from dp2ddp.analysis.loops import local_names
from dp2ddp.analysis.names import Own
from dp2ddp.analysis.own_ddp import joined, opposite
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode
from dp2ddp.edits import Finding, InsertBefore, Note
from dp2ddp.errors import BadInput
from dp2ddp.rules.base import Example, Options, Rule

_ALL_DEVICES = frozenset({"range(torch.cuda.device_count())", "list(range(torch.cuda.device_count()))", "None"})


# What only looks at names and attributes: it may be asked earlier, and twice.
_READING = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp),
    *(ast.expr_context, ast.cmpop, ast.boolop, ast.unaryop, ast.operator),
)


class LaunchRule(Rule):
    """`ddp.setup(...)` after the arguments are parsed, before anything else has an effect."""

    id = "DDP001"
    title = "Start one process per GPU"
    why = (
        "DistributedDataParallel runs one process per GPU. `ddp.setup()` joins the process group, or starts the "
        "other processes when the script is run plainly. It stands after `parse_args()`, so that `--help` starts "
        "nothing, and before anything that prints, seeds, builds or reads, so that every rank does these things "
        "alike. A script that can also set up DDP itself is refused, or with `--allow-ddp` starts the processes only "
        "where it doesn't; the lines of its own DDP stay as they are."
    )
    examples = (
        Example(
            before="""\
import argparse
import os

import torch.nn as nn

parser = argparse.ArgumentParser()
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"

print("training")
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
""",
            after="""\
import argparse
import os

import torch.nn as nn
import dp2ddp_runtime as ddp

parser = argparse.ArgumentParser()
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"

ddp.setup(device_ids=[0, 1])
print("training")
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
""",
        ),
        Example(
            before="""\
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    net = nn.DataParallel(nn.Linear(4, 2))


if __name__ == "__main__":
    main()
""",
            after="""\
import torch
from torch import nn
import dp2ddp_runtime as ddp


def main():
    ddp.setup()
    torch.manual_seed(0)
    net = nn.DataParallel(nn.Linear(4, 2))


if __name__ == "__main__":
    main()
""",
        ),
        Example(
            allow_ddp=True,
            also=("DDP002",),
            before="""\
import argparse
import torch.distributed as dist
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()

net = nn.Linear(4, 2)
if args.distributed:
    dist.init_process_group("nccl")
    net = nn.parallel.DistributedDataParallel(net.cuda())
else:
    net = nn.DataParallel(net).cuda()
""",
            after="""\
import argparse
import torch.distributed as dist
import torch.nn as nn
import dp2ddp_runtime as ddp

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()

if not args.distributed:
    ddp.setup(beside_ddp=True)
net = nn.Linear(4, 2)
if args.distributed:
    dist.init_process_group("nccl")
    net = nn.parallel.DistributedDataParallel(net.cuda())
else:
    net = ddp.wrap_model(net, gather=True)
""",
        ),
    )

    def prepare(self, facts: Facts, options: Options) -> None:
        """Move the launch to where it can be told whether the script sets up its own DDP."""
        if not facts.parallel or not facts.beside_ddp:
            return
        for index, launch in enumerate(facts.launches):
            modules = facts.names.reachable(launch.entry)
            if launch.statement is not None and facts.own_ddp.begins(modules):
                test, facts.launches[index] = self._beside_ddp(facts, launch, modules)
                facts.own_ddp_is_off[launch.entry] = test

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        if not facts.parallel:
            return
        for launch in facts.launches:
            yield from self._start(facts, launch)

    def _start(self, facts: Facts, launch: Launch) -> Iterator[Finding]:
        modules = facts.names.reachable(launch.entry)
        wraps = [w for w in facts.wraps.models if facts.source.module(w.call) in modules]
        calls = [c for c in facts.wraps.functional if facts.source.module(c) in modules]
        if launch.statement is None:
            yield Note(
                self.id,
                facts.source.span([*(w.call for w in wraps), *calls, *launch.entry.body][0]),
                "nothing in this file runs when it is started, so there is no place here for `ddp.setup()`",
                "call `ddp.setup()` in the script that is started, before it builds anything",
            )
            return
        test = facts.own_ddp_is_off.get(launch.entry)
        ids = [(ids, call) for ids, call in facts.wraps.device_ids if facts.source.module(call) in modules]
        given = {self._written(facts, launch, each): call for each, call in ids}
        texts = [text for text in given if text not in _ALL_DEVICES]
        known = [text for text in texts if text is not None]
        arguments = [f"device_ids={known[0]}"] if known else []
        lines = [f"ddp.setup({', '.join(arguments)})"]
        if test is not None:
            lines = [f"if {test}:", f"    ddp.setup({', '.join([*arguments, 'beside_ddp=True'])})"]
        yield InsertBefore(
            self.id,
            facts.source.span(launch.statement),
            "starts one process per device, before anything that all of them have to do alike",
            lines,
        )
        if len(texts) > 1 or None in texts:
            yield Note(
                self.id,
                facts.source.span(given[texts[-1]]),
                "the `device_ids` of this wrap are not known where the processes start, so "
                + (f"`{known[0]}` are used" if known else "all visible devices are used"),
                "pass the right `device_ids` to `ddp.setup()`, or set CUDA_VISIBLE_DEVICES",
            )

    def _beside_ddp(self, facts: Facts, launch: Launch, modules: Collection[ast.Module]) -> tuple[str, Launch]:
        """The test for a start that the script's own distributed training leaves alone, and the first place for it.

        Raises:
            BadInput: it can't be told before the models are wrapped.
        """
        condition = facts.own_ddp.condition(modules)
        # The latest statement, if it wraps models: what follows it is too late. (What stands inside it comes next.)
        passed: ast.stmt | None = None
        for here in facts.launch_finder.later(launch) if condition is not None else ():
            assert condition is not None
            assert here.statement is not None
            if passed is not None and here.statement not in facts.loops.reached(passed):
                break
            known = self._known_at(facts, here, condition)
            if known is not None:
                return opposite(known), here
            if not isinstance(here.statement, (*FUNCTIONS, ast.ClassDef)):
                reached = set(facts.loops.reached(here.statement))
                passed = here.statement if any(wrap.call in reached for wrap in facts.wraps.models) else None
        place = facts.own_ddp.begins(modules)[0]
        raise BadInput(
            facts.source.file(place).name,
            line=place.lineno - facts.source.file(place).before,
            what="it can't be told where the processes start whether the script sets up DistributedDataParallel itself",
            todo="set it up under a plain `if args.distributed:` with `args` from the command line",
        )

    def _known_at(self, facts: Facts, here: Launch, condition: ast.expr) -> ast.expr | None:
        """A condition as it can be told at a place; None where it can't, because what it asks for is set later."""
        assert here.statement is not None
        block = facts.source.block(here.statement)
        rest = block[block.index(here.statement) :]
        known = self._knowable(facts, here, condition)
        if known is None:
            return None
        later = list(facts.loops.reached(*rest))
        setting = [node for node in later if self._sets(facts, known, node)]
        if not setting:
            return known
        # `args.distributed = args.world_size > 1`, further down: that may be asked for right here.
        statements = [statement for statement in rest if isinstance(statement, ast.Assign)]
        only = [one for one in statements if one.targets == setting]
        if not only or any(self._sets(facts, only[0].value, node) for node in later):
            return None
        value = only[0].value
        if not all(isinstance(part, _READING) for part in ast.walk(value)) or not self._visible(facts, here, value):
            return None
        told: ast.expr = _Told(only[0]).visit(copy.deepcopy(known))
        return told

    def _knowable(self, facts: Facts, launch: Launch, test: ast.expr) -> ast.expr | None:
        """What of a test can be told at a place: of an `and` perhaps only some terms."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            known = [term for term in test.values if self._knowable(facts, launch, term) is not None]
            return joined(ast.And(), known) if known else None
        return test if self._visible(facts, launch, test) else None

    def _sets(self, facts: Facts, test: ast.expr, node: ast.AST) -> bool:
        """Whether a node sets something that the test asks for, outside of the script's own distributed training."""
        if not (isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store)):
            return False
        if isinstance(node, ast.Name):
            read = (n for n in ast.walk(test) if isinstance(n, ast.Name) and n.id == node.id)
            asked = any(_bound_in(facts, n) is _bound_in(facts, node) for n in read)
        else:
            asked = node.attr in {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
        span = facts.source.span(node)
        return asked and not any(one.contains(span) for one in facts.own_ddp.spans)

    def _written(self, facts: Facts, launch: Launch, node: ast.expr | None) -> str | None:
        """`device_ids` as it can be written where the processes start, None where it can't."""
        seen: set[tuple[ast.AST | None, str]] = set()
        while node is not None:
            if self._visible(facts, launch, node):
                return " ".join(facts.source.segment(node).split())
            if not isinstance(node, ast.Name) or (facts.source.function(node), node.id) in seen:
                return None
            seen.add((facts.source.function(node), node.id))
            node = self._only_value(facts, node)
        return None

    def _visible(self, facts: Facts, launch: Launch, node: ast.expr) -> bool:
        """Whether every name in an expression means the same where the processes start."""
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        inner = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return all(self._means_the_same(facts, launch, n) for n in names if n.id not in inner)

    def _means_the_same(self, facts: Facts, launch: Launch, name: ast.Name) -> bool:
        if (facts.names.qualified(name) or "").startswith("builtins."):
            return True
        if name.id not in launch.visible:
            return False
        assert launch.statement is not None
        function, start = facts.source.function(name), facts.source.function(launch.statement)
        if function is not None and function is not start and name.id in local_names(function):
            return self._handed_on(facts, launch, function, name.id)
        there = facts.source.module(launch.statement)
        if facts.source.module(name) is there:
            return True
        # A name of another module: imported from the same place.
        target = facts.names.target(name) or Own(facts.source.module(name), name.id)
        return facts.names.follow(there, name.id) == target

    def _handed_on(self, facts: Facts, launch: Launch, function: FunctionNode, name: str) -> bool:
        """Whether every caller gives the function this name's value under the same name."""
        assert launch.statement is not None
        calls = [c for c in facts.source.calls for f in facts.resolver.functions_called(c) if f.definition is function]
        there = facts.source.module(launch.statement)
        return bool(calls) and all(
            facts.loops.written_by_caller(c, function, name) == name and facts.source.module(c) is there for c in calls
        )

    def _only_value(self, facts: Facts, name: ast.Name) -> ast.expr | None:
        """What the name is bound to, once: by its only caller, in the function that uses it, or else in the module."""
        function = facts.source.function(name)
        if function is not None and name.id in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}:
            passed = (one for call in facts.source.calls for one in facts.resolver.arguments(call))
            values = [value for callee, parameter, value in passed if (callee, parameter) == (function, name.id)]
            return values[0] if len(values) == 1 and not isinstance(values[0], ast.Starred) else None
        local = function is not None and name.id in local_names(function)
        scope = function if local else facts.source.module(name)
        values = [
            n.value
            for n in facts.source.nodes
            if isinstance(n, ast.Assign)
            and facts.source.scope(n) is scope
            and any(isinstance(t, ast.Name) and t.id == name.id for t in n.targets)
        ]
        return values[0] if len(values) == 1 else None


def _bound_in(facts: Facts, name: ast.Name) -> ast.AST:
    """The function or module whose name this is."""
    function = facts.source.function(name)
    return function if function is not None and name.id in local_names(function) else facts.source.module(name)


class _Told(ast.NodeTransformer):
    """Puts the value of an assignment in the place of its target."""

    def __init__(self, assignment: ast.Assign) -> None:
        self._target = ast.unparse(assignment.targets[0])
        self._value = assignment.value

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._value if ast.unparse(node) == self._target else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value if node.id == self._target else node
