"""The devices that `ddp.setup()` is given, as far as that saves starting processes that nobody asks for.

The runtime ends those that a wrap doesn't ask for (`ddp.wrap_model(device_ids=...)`, `ddp.release_idle()`), so nothing
here has to be complete: what is short and known where the processes start is given, and nothing else.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from dp2ddp.analysis.control.conditions import is_true_constant, may_be_passed_by, negated, with_and
from dp2ddp.analysis.control.ways import is_elsewhere, on_condition, opposite_of, simplest
from dp2ddp.analysis.existing_ddp.own_ddp import ASKS_FOR_DDP
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.launch.settled import DEVICES
from dp2ddp.analysis.on_gpus import all_terms, is_true_anyway, needs_gpus, on_gpus
from dp2ddp.analysis.visible import DEVICE_COUNTS, is_plain, means_all, told, told_of, written
from dp2ddp.source.nodes import is_main_guard

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts

_ONE_PROCESS = "[0]"
_LONGEST = 70  # characters: what is longer is settled by the wraps, and behind them
#: What is asked of the number of devices for them to be used.
_SEVERAL = ("> 1", ">= 2", "!= 1", "> 0", ">= 1", "!= 0")
#: That a script doesn't set up DDP itself.
_IS_OFF = re.compile(r"not (?!.*\bno_)[\w.]*(distributed|\bdist\b|\bddp\b|multiprocessing)\w*$")
#: Ways to wraps of which one is gone whatever is asked.
_ANYWAY: list[list[tuple[str, ...]]] = [[], [()]]
_SAME_NUMBER = ("builtins.int", "builtins.str")


@dataclass(frozen=True)
class Given:
    """What `ddp.setup()` is given.

    Attributes:
        device_ids: as they are written there; None for all devices.
        are_chosen: whether they are those that the script chooses, by CUDA_VISIBLE_DEVICES, too.
        idle_behind: the statements behind each of which processes have nothing to do, if no model has been wrapped: the
            first is the one to take, unless another script comes there, too, and wraps models behind it.
        is_never_asked: whether several devices aren't used whatever is given, so that the script can stay as it is.
        picked: the one device that is given otherwise, which is None where models are wrapped: `args.gpu`.
    """

    device_ids: str | None
    are_chosen: bool = False
    idle_behind: tuple[ast.stmt, ...] = ()
    is_never_asked: bool = False
    picked: str | None = None


@dataclass(frozen=True)
class _Case:
    """A wrap, or where devices are made visible: its `device_ids` (None for all devices), and when it is reached."""

    call: ast.expr | ast.Assign
    ids: str | None
    is_known: bool
    tests: tuple[str, ...]
    untold: tuple[str, ...] = ()  # what must be true as well, and isn't known at the launch


def given_devices(facts: Facts, launch: Launch) -> Given:
    """The devices of the wraps in the program that is started, at a place that isn't known for none."""
    if launch.statement is None:
        return Given(None)
    shared = (case for case in _cases(facts, launch) if case.call not in facts.wraps.taken_off)
    found = sorted(shared, key=lambda case: (case.call.lineno, case.call.col_offset))
    cases = [case for case in found if not _is_never_reached(facts, case)]
    if found and not cases:
        return Given(_ONE_PROCESS, is_never_asked=True)
    chosen = _made_visible_later(facts, launch)
    chosen_from = _chosen_from(facts, launch)
    are_counted = (case.ids in (None, _ONE_PROCESS) or _only_counts(case.ids, chosen_from) for case in cases)
    if chosen is not None and all(case.is_known for case in cases) and all(are_counted):
        cases = _sized(cases)
        are_reached = simplest([case.tests for case in cases]) in _ANYWAY and not _may_all_be_passed(cases)
        return Given(chosen, True, () if are_reached else _behind(facts, launch, cases))
    cases = _sized([replace(case, ids=_among(facts, launch, case.ids)) for case in cases])
    are_chosen = all(case.ids is not None and _speaks_of(case.ids, chosen_from) for case in cases)
    ids = _widest(cases)
    ids = ids if ids is None or len(ids) <= _LONGEST else None  # the wrap says it as well
    ways, places = simplest([case.tests for case in cases]), _behind(facts, launch, cases)
    behind = places
    if any(_is_certain(facts, case) for case in cases):
        # Behind the function, in which others return, a wrap may still not have been reached.
        behind = tuple(place for place in places[1:] if place is not facts.source.block(place)[-1])
    given, is_clear, picked = ids, ways in _ANYWAY, None
    if not is_clear:
        pick = next((each.ids for each in _picks(facts, launch) if is_elsewhere(each.tests, ways[0])), None)
        given = on_condition(ids, ways, pick or _ONE_PROCESS)
        is_clear = len(ways) == 1 and len(given or "") <= _LONGEST
        picked = pick[1:-1] if pick is not None and ways == [(f"{pick[1:-1]} is None",)] else None
    if not is_clear and places:
        return Given(ids, are_chosen, behind)
    return Given(given, are_chosen, behind if _may_all_be_passed(cases) else (), picked=picked)


def _may_all_be_passed(cases: list[_Case]) -> bool:
    """Whether what isn't known at the launch may leave all wraps out."""
    ways = simplest([(*case.tests, *case.untold) for case in cases])
    return all(case.untold for case in cases) and ways not in _ANYWAY


def _widest(cases: list[_Case]) -> str | None:
    """The `device_ids` of all wraps, or of one among whose numbers are the others'; else None, all devices.

    Nor of different ones where the number of devices says which: there may be as many as another one asks for.
    """
    found = {case.ids for case in cases}
    if len(found) <= 1:
        return next(iter(found), None)
    if not all(case.is_known for case in cases) or any("device_count()" in test for c in cases for test in c.tests):
        return None
    numbers = {each: {*(_numbers(ast.parse(each, mode="eval").body) or ())} for each in found if each is not None}
    whole = set().union(*numbers.values())
    is_known = None not in found and all(numbers.values())
    return next((each for each, own in numbers.items() if own == whole), None) if is_known else None


def _behind(facts: Facts, launch: Launch, cases: list[_Case]) -> tuple[ast.stmt, ...]:
    """The statement behind which all wraps have been passed, if they are in one block that runs once; and what leads
    to it, from the inside out.
    """
    found = [_whole(facts, case.call) for case in cases]
    if len({id(facts.source.block(statement)) for statement in found}) != 1:
        return ()
    last = max(found, key=lambda statement: statement.lineno)
    return tuple(_whole(facts, place) for place in _led_to(facts, launch, last))


def _is_certain(facts: Facts, case: _Case) -> bool:
    """Whether what follows in a wrap's function comes behind it."""
    return not may_be_passed_by(facts.source, case.call, _whole(facts, case.call))


def _led_to(facts: Facts, launch: Launch, node: ast.AST) -> list[ast.AST]:
    """A line and the calls that lead to it from the launch, if that is once, as far as calls can be told: the next time
    it may wrap.
    """
    led = [node]
    passed: set[ast.AST] = set()
    while True:
        function = facts.source.function(node)
        inside = takewhile(partial(operator.is_not, function), facts.source.ancestors(node))
        if any(isinstance(above, (ast.For, ast.While)) for above in inside):
            return []
        if function is None or function in passed or launch.statement is None:
            return led if function is None else []
        if function is facts.source.function(launch.statement):
            return led
        calls = [call for call in facts.callers.of(function) if facts.comes_to(launch, call)]
        if len({_whole(facts, call) for call in calls}) != 1:  # both branches of an `if` may call it
            return []
        passed.add(function)
        node = calls[0] if len(calls) == 1 else _whole(facts, calls[0])
        led.append(node)


def _whole(facts: Facts, call: ast.AST) -> ast.stmt:
    """The statement on its function's own level in which a wrap is."""
    whole = facts.source.statement(call)
    for above in facts.source.ancestors(whole):
        if not isinstance(above, (ast.If, ast.With, ast.Try)) or is_main_guard(above):
            break
        whole = above
    return whole


def _chosen_from(facts: Facts, launch: Launch) -> list[ast.AST]:
    """What makes GPUs visible behind the launch."""
    return [node for kind, node in launch.late if kind == DEVICES]


def _only_counts(ids: str, chosen_from: list[ast.AST]) -> bool:
    """Whether `device_ids` aren't numbers, nor what the visible GPUs are made of: `opt.gpus` beside `opt.gpus_str`."""
    return _numbers(ast.parse(ids, mode="eval").body) is None and not _speaks_of(ids, chosen_from)


def _speaks_of(ids: str, chosen_from: list[ast.AST]) -> bool:
    """Whether `device_ids` are made of what the visible GPUs are made of, too: `args.gpus`, or numbers among theirs."""
    given = ast.parse(ids, mode="eval").body

    def is_among(value: ast.expr) -> bool:
        numbers, visible = _numbers(given), _numbers(value)
        is_same = ids == ast.unparse(value) or bool(_read(given) & _read(value))
        return is_same if numbers is None or visible is None else {*numbers} <= {*visible}

    return all(isinstance(node, ast.Assign) and is_among(node.value) for node in chosen_from)


def _read(node: ast.AST) -> set[str]:
    """The names that an expression reads, and attributes instead of what has them: `opt.gpus` says nothing of `opt`."""
    called = {part.func for part in ast.walk(node) if isinstance(part, ast.Call)}
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Attribute) and part not in called]
    having = {part.value for part in parts}
    whole = {ast.unparse(part) for part in parts if part not in having}
    return whole | {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part not in having}


def _among(facts: Facts, launch: Launch, ids: str | None) -> str | None:
    """Numbers that count the GPUs of `CUDA_VISIBLE_DEVICES = "2,3"`, behind the launch, as what these are for sure."""
    visible = []
    for each in _chosen_from(facts, launch):
        is_certain = all(is_true_anyway(facts, term, least=1) for term in all_terms(facts, launch, each))
        visible.append(_numbers(each.value) if is_certain and isinstance(each, ast.Assign) else None)
    counted = None if ids is None else _numbers(ast.parse(ids, mode="eval").body)
    if not counted or len(visible) != 1 or not visible[0] or max(counted) >= len(visible[0]):
        return ids
    return str([visible[0][number] for number in counted])


def _numbers(node: ast.expr) -> list[int] | None:
    """The GPUs of `[0, 1]`, `range(2)` or `"0,1"`."""
    try:
        value = ast.literal_eval(node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node)
        given = value.split(",") if isinstance(value, str) else range(value) if isinstance(node, ast.Call) else value
        return [int(each) for each in given]
    except (ValueError, TypeError):
        return None


def _is_never_reached(facts: Facts, case: _Case) -> bool:
    """Whether what must be true for a wrap isn't, whatever is given: `gpus > 1` of a default that nobody changes."""
    tests = (ast.parse(test, mode="eval").body for test in case.tests)
    return "[]" in case.tests or any(is_true_anyway(facts, negated(test), 1) for test in tests)


def _made_visible_later(facts: Facts, launch: Launch) -> str | None:
    """What CUDA_VISIBLE_DEVICES is set to behind the launch, if that, and when it is set, is known before."""
    cases = []
    for node in (node for kind, node in launch.late if kind == DEVICES):
        if not isinstance(node, ast.Assign):
            return None
        ids = written(facts, launch, node.value)
        asked = [(test, told(facts, launch, test, node.value)) for test in all_terms(facts, launch, node)]
        tests = [there for test, there in asked if there is None or not is_true_anyway(facts, test, least=2)]
        if ids is None or not all(test is not None and is_plain(facts, test) for test in tests):
            return None
        texts = tuple(_as_ranks_see_it(ast.unparse(test)) for test in tests if test is not None)
        cases.append(_Case(node, ids, True, texts))
    if len(cases) == 2 and len(cases[0].tests) == 1 and cases[1].tests == (opposite_of(cases[0].tests[0]),):
        return on_condition(cases[1].ids, [cases[1].tests], cases[0].ids)
    if len(cases) != 1:
        return None
    return on_condition(cases[0].ids, [cases[0].tests], None) if cases[0].tests else cases[0].ids


def _picks(facts: Facts, launch: Launch) -> Iterator[_Case]:
    """The GPUs to which the script goes where nothing is wrapped: `net.cuda(args.gpu)`, and on which condition."""
    for place, pick in (*facts.picking, *facts.spelling):
        is_own = isinstance(place, ast.Call) and bool(facts.resolver.functions_called(place))
        if isinstance(pick, ast.Call) and pick.args and facts.names.qualified(pick.func) in _SAME_NUMBER:
            pick = pick.args[0]
        there = told(facts, launch, pick, place) if facts.comes_to(launch, place) and not is_own else None
        is_index = isinstance(there, ast.Constant) and type(there.value) is int and there.value != 0
        if there is None or not (is_index or isinstance(there, (ast.Name, ast.Attribute, ast.Subscript))):
            continue
        ids = f"[{ast.unparse(there)}]"
        parts = list(_parts(facts, launch, place, ids))
        asked = {ast.unparse(known or part): known for part, known in parts if known or not needs_gpus(facts, part)}
        own_ddp = [test for test in asked if ASKS_FOR_DDP.search(test)]  # which is off where processes start
        others = {test: known for test, known in asked.items() if test not in own_ddp}
        is_told = all(known is not None and is_plain(facts, known) for known in others.values())
        if is_told and all(test == launch.test or _IS_OFF.match(test) for test in own_ddp):
            yield _Case(place, ids, True, tuple(map(_as_ranks_see_it, reversed(others))))


def picked_later(facts: Facts, launch: Launch) -> list[ast.expr]:
    """The GPUs that are picked where nothing is wrapped, by the one process then, and not known at the launch."""
    cases = [] if launch.statement is None else list(_cases(facts, launch))
    tests = [case.tests for case in cases if case.call not in facts.wraps.taken_off]
    if not tests or any(len(each) != 1 for each in tests):
        return []
    elsewhere = {opposite_of(test) for (test,) in tests}
    picks = (pick for _, pick in facts.picking if isinstance(pick, ast.Attribute))
    apart = (pick for pick in picks if elsewhere <= set(map(ast.unparse, all_terms(facts, launch, pick))))
    return [pick for pick in apart if told(facts, launch, pick) is None]


def _cases(facts: Facts, launch: Launch) -> Iterator[_Case]:
    # The script's own distributed training has a condition of its own, and what else wraps isn't known to be reached.
    by_test = not facts.wraps.functional and not facts.wraps.values and not _may_be_loaded(facts)
    for wrap in facts.wraps.models:
        is_for_all = wrap.device_ids is None or means_all(facts, wrap.device_ids)
        if is_for_all and facts.comes_to(launch, wrap.call):
            yield _reached(facts, launch, _Case(wrap.call, None, True, ()), by_test)
    for each, call in facts.wraps.device_ids:
        if facts.comes_to(launch, call) and not means_all(facts, each):
            ids = written(facts, launch, each)
            is_known, ids = ids is not None, None if ids == "None" else ids
            yield _reached(facts, launch, _Case(call, ids, is_known, ()), by_test)


def _may_be_loaded(facts: Facts) -> bool:
    """Whether a checkpoint may give what is wrapped elsewhere, and may hold it wrapped: `net = checkpoint["net"]`."""
    made = [facts.source.parent(wrap.call) for wrap in facts.wraps.models]
    names = {ast.unparse(target) for each in made if isinstance(each, ast.Assign) for target in each.targets}
    for node in facts.source.nodes:
        if isinstance(node, ast.Assign) and names.intersection(map(ast.unparse, node.targets)):
            value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if any(
                isinstance(each, ast.Call) and facts.names.qualified(each.func) == "torch.load"
                for each in (value, *facts.provenance.of(value))
            ):
                return True
    return False


def _reached(facts: Facts, launch: Launch, case: _Case, by_test: bool) -> _Case:
    """A wrap, with the conditions under which it is reached, by what of them is known at the launch."""
    if not by_test:
        return case
    assert isinstance(case.call, ast.Call)
    parts = list(_parts(facts, launch, case.call, case.ids))
    known = [there for _, there in parts if there is not None and is_plain(facts, there)]
    found = [_as_ranks_see_it(ast.unparse(there)) for there in known if not is_true_constant(there)]
    if launch.test is not None:  # which asks for the script's own DDP already
        found = [test for test in found if not ASKS_FOR_DDP.search(test) and test != launch.test]
    untold = [ast.unparse(there or part) for part, there in parts if there not in known]
    return replace(case, tests=tuple(dict.fromkeys(reversed(found))), untold=tuple(reversed(untold)))


def _sized(cases: list[_Case]) -> list[_Case]:
    """Cases without `len(ids) > 1`: for one or none one process starts. Wraps that are reached then must agree."""
    for number, case in enumerate(cases):
        ids = ast.unparse(ast.parse(case.ids or "[]", mode="eval"))  # as tests are written
        for test in case.tests:
            asks = (f"{each} {ask}" for each in _sizes(ids) for ask in _SEVERAL)
            if test in (f"len({ids})", *asks):
                first = f"{case.ids}[0]"
                alike = (first, f"[{first}]", f"str({first})")
                behind = [each for each in cases if opposite_of(test) in each.tests]
                if all(each.ids in (case.ids, *alike) for each in behind):
                    cases = [replace(each, ids=case.ids) if each in behind else each for each in cases]
                    cases[number] = replace(case, tests=tuple(each for each in case.tests if each != test))
    return cases


def unknown(facts: Facts, launch: Launch) -> int:
    """How much of the devices, of wraps and visible ones, and of the conditions of models' wraps isn't known there."""
    ids = [(each, call) for each, call in facts.wraps.device_ids if facts.comes_to(launch, call)]
    missing = sum(not means_all(facts, each) and written(facts, launch, each) is None for each, _ in ids)
    chosen = (each.value for each in _chosen_from(facts, launch) if isinstance(each, ast.Assign))
    missing += sum(told(facts, launch, value) is None for value in chosen)
    for wrap in () if facts.beside_ddp else facts.wraps.models:
        if facts.comes_to(launch, wrap.call):
            tests = _parts(facts, launch, wrap.call, None)
            missing += sum(there is None or not is_plain(facts, there) for _, there in tests)
    return missing


def untold_condition(facts: Facts, launch: Launch) -> str | None:
    """What must be true for all wraps to be reached and isn't known at the launch, if that is one thing."""
    cases = [case for case in _cases(facts, launch) if case.call not in facts.wraps.taken_off]
    parts = [_parts(facts, launch, case.call, case.ids) for case in cases if isinstance(case.call, ast.Call)]
    untold = [{ast.unparse(part) for part, there in each if there is None} for each in parts]
    shared = set.intersection(*untold) if untold else set()
    return min(shared, key=len) if shared else None


def _parts(facts: Facts, launch: Launch, call: ast.expr, ids: str | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What must be true for a wrap to be reached and isn't so anyway, as it is written and as it is at the launch."""
    least = 2 if ids is None else 1
    for term in all_terms(facts, launch, call):
        term = on_gpus(facts, term, least)
        for part in reversed(term.values) if isinstance(term, ast.BoolOp) and isinstance(term.op, ast.And) else [term]:
            there = with_and(told(facts, launch, part, call) or told_of(facts, launch, part, call, ids))
            if not any(each is not None and is_true_anyway(facts, each, least) for each in (part, there)):
                yield part, there


def _as_ranks_see_it(test: str) -> str:
    """A condition that is the same in each rank, which sees one device, as in the process that starts them."""
    test = re.sub(r"\.__dict__\['([^\W\d]\w*)'\]", r".\1", test)
    for count in DEVICE_COUNTS:
        test = test.replace(f"{count}()", "ddp.device_count()")
    return test


def _sizes(ids: str) -> Iterator[str]:
    """How many `device_ids` are, as a script may write it."""
    yield f"len({ids})"
    for start, end in (("range(", ")"), ("list(range(", "))"), ("[*range(", ")]")):
        if ids.startswith(start) and ids.endswith(end):
            yield ids[len(start) : -len(end)]
