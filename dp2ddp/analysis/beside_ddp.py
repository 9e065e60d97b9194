"""Where the processes may start beside a script's own DistributedDataParallel: where it is known to be off."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dp2ddp.analysis.changes import Held
from dp2ddp.analysis.control.conditions import joined, opposite
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.visible import visible
from dp2ddp.errors import BadInput
from dp2ddp.source.nodes import in_order
from dp2ddp.source.program import FUNCTIONS

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts

# What only looks at names and attributes: it may be asked earlier, and twice.
_READING = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp),
    *(ast.expr_context, ast.cmpop, ast.boolop, ast.unaryop, ast.operator),
)


def placed(facts: Facts, launch: Launch) -> Launch:
    """The launch where the script's own distributed training leaves it alone: the first place where that can be told,
    and the test for it. The launch itself where the script that is started has no such training.

    Raises:
        BadInput: it can't be told before the models are wrapped.
    """
    if launch.statement is None or not facts.own_ddp.begins(launch.entry):
        return launch
    condition = facts.own_ddp.condition(launch.entry)
    # The latest statement, if it wraps models: what follows it is too late. (What stands inside it comes next.)
    passed: ast.stmt | None = None
    ran: list[ast.stmt] = []
    for here in facts.launch_finder.later(launch) if condition is not None else ():
        assert condition is not None
        assert here.statement is not None
        if passed is not None and here.statement not in facts.loops.reached(passed):
            break
        known = _known_at(facts, here, condition)
        if known is not None:
            whole = [each for each in ran if here.statement not in facts.loops.reached(each)]
            folders = [*launch.folders, *facts.launch_finder.settled.folders(*whole)]
            early = _written_before(facts, here.statement, ran)
            return replace(here, folders=folders, early=early, test=opposite(facts.source, known))
        if not isinstance(here.statement, (*FUNCTIONS, ast.ClassDef)):
            ran.append(here.statement)
            reached = set(facts.loops.reached(here.statement))
            passed = here.statement if any(wrap.call in reached for wrap in facts.wraps.models) else None
    raise _untold(facts, facts.own_ddp.begins(launch.entry)[0], condition)


def _written_before(facts: Facts, place: ast.stmt, ran: Sequence[ast.stmt]) -> list[ast.Call]:
    """What writes files among the statements that each process runs by itself before it comes to a place.

    Folders are left out: the process that starts the others has made them before these look.
    """
    reached = [set(facts.loops.reached(statement)) for statement in ran]
    nodes: set[ast.AST] = set().union(*(found for found in reached if place not in found))
    return in_order([node for node in nodes if isinstance(node, ast.Call) and _writes(facts, node)])


def _writes(facts: Facts, call: ast.Call) -> bool:
    path = facts.names.qualified(call.func) or ""
    writing = facts.writers.of(call)
    opened = facts.files.opened(call)
    if facts.catalogue.does(path, "changes", "saves") or (opened is not None and opened.writes):
        return True
    return writing is not None and bool(writing.names) and path not in ("os.makedirs", "os.mkdir")


def _untold(facts: Facts, place: ast.Call, condition: ast.expr | None) -> BadInput:
    """The error where it can't be told before the models are wrapped whether the script sets up DDP itself."""
    plain = "`if args.distributed:`, with `args` from the command line"
    call = facts.source.brief(place.func)
    if condition is None:
        what = f"it can't be told on what condition the script sets up distributed training itself (`{call}`)"
        todo = f"put this line under a plain {plain}; or take it out, and the DistributedDataParallel that needs it"
    else:
        told = " ".join(ast.unparse(condition).split())
        what = f"`{call}` depends on `{told}`, which isn't known at any place before the models are wrapped"
        todo = f"decide it in the script's main part, above all that wraps a model; best as a plain {plain}"
    file = facts.source.file(place)
    return BadInput(file.name, line=place.lineno - file.before, what=what, todo=todo)


def _known_at(facts: Facts, here: Launch, condition: ast.expr) -> ast.expr | None:
    """A condition as it can be told at a place; None where it can't, because what it asks for is set later."""
    assert here.statement is not None
    block = facts.source.block(here.statement)
    rest = block[block.index(here.statement) :]
    known = _knowable(facts, here, condition)
    if known is None:
        return None
    later = list(facts.loops.reached(*rest))
    setting = [node for node in later if _sets(facts, here, known, node)]
    if not setting:
        return known
    # `args.distributed = args.world_size > 1`, further down: that may be asked for right here.
    statements = [statement for statement in rest if isinstance(statement, ast.Assign)]
    only = [one for one in statements if one.targets == setting]
    if not only or any(_sets(facts, here, only[0].value, node) for node in later):
        return None
    value = only[0].value
    if not all(isinstance(part, _READING) for part in ast.walk(value)) or not visible(facts, here, value):
        return None
    told: ast.expr = _Told(only[0]).visit(copy.deepcopy(known))
    return told


def _knowable(facts: Facts, launch: Launch, test: ast.expr) -> ast.expr | None:
    """What of a test can be told at a place: of an `and` perhaps only some terms."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        known = [term for term in test.values if _knowable(facts, launch, term) is not None]
        return joined(ast.And(), known) if known else None
    return test if visible(facts, launch, test) else None


def _sets(facts: Facts, here: Launch, test: ast.expr, node: ast.AST) -> bool:
    """Whether a node sets something that the test asks for, outside of the script's own distributed training."""
    if not (isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store)):
        return False
    span = facts.source.span(node)
    return Held(facts, here, test).is_written(node) and not any(one.contains(span) for one in facts.own_ddp.spans)


class _Told(ast.NodeTransformer):
    """Puts the value of an assignment in the place of its target."""

    def __init__(self, assignment: ast.Assign) -> None:
        self._target = ast.unparse(assignment.targets[0])
        self._value = assignment.value

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._value if ast.unparse(node) == self._target else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value if node.id == self._target else node
