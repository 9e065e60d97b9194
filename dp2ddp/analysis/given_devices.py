"""The devices that `ddp.setup()` is given: those that models are wrapped for, each on the condition of its wrap.

A condition need not be exact. Where it is true too often, processes start that train alone, as one would; so terms that
can't be told where the processes start are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, permutations
from typing import TYPE_CHECKING

from dp2ddp.analysis.control.conditions import is_true_constant, negated, with_and
from dp2ddp.analysis.existing_ddp.own_ddp import ASKS_FOR_DDP
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.launch.settled import DEVICES
from dp2ddp.analysis.on_gpus import all_terms, is_true_anyway
from dp2ddp.analysis.visible import DEVICE_COUNTS, means_all, told, written
from dp2ddp.source.nodes import last_name, names_in

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts

_ONE_PROCESS = "[0]"
#: What a condition may consist of to be written once more; of calls, those that only look.
_PLAIN: tuple[type[ast.AST], ...] = (ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp)
_PLAIN = (*_PLAIN, ast.List, ast.Tuple, ast.Subscript, ast.expr_context, ast.cmpop, ast.boolop, ast.unaryop)
#: What calls may only look at something.
_LOOKING = (*DEVICE_COUNTS, "builtins.len", "builtins.bool", "builtins.int")


@dataclass(frozen=True)
class Given:
    """What `ddp.setup()` is given.

    Attributes:
        device_ids: as they are written there; None for all devices.
        untold: a wrap whose `device_ids` are others, or not known there.
        is_other: whether that wrap's are known, and others.
        instead: what is used for that wrap; None for all devices.
        are_chosen: whether they are those that the script chooses, by CUDA_VISIBLE_DEVICES, too.
    """

    device_ids: str | None
    untold: ast.Call | ast.Assign | None = None
    is_other: bool = False
    instead: str | None = None
    are_chosen: bool = False


@dataclass(frozen=True)
class _Case:
    """A wrap, or where devices are made visible: its `device_ids` (None for all devices), and when it is reached."""

    call: ast.Call | ast.Assign
    ids: str | None
    is_known: bool
    tests: tuple[str, ...]


def given_devices(facts: Facts, launch: Launch) -> Given:
    """The devices of the wraps in the program that is started."""
    shared = (case for case in _cases(facts, launch) if case.call not in facts.wraps.taken_off)
    cases = sorted(shared, key=lambda case: (case.call.lineno, case.call.col_offset))
    if cases and all(map(_is_never_reached, cases)):
        return Given(_ONE_PROCESS)
    cases = [case for case in cases if not _is_never_reached(case)]
    chosen = _made_visible_later(facts, launch)
    if chosen is not None and all(case.ids in (None, _ONE_PROCESS) and case.is_known for case in cases):
        return Given(chosen, are_chosen=True)
    cases = [replace(case, ids=_among(facts, launch, case.ids)) for case in cases]
    visible = {case.call: _visible_there(facts, launch, case.call) for case in cases}
    if not any(case.ids and visible[case.call] for case in cases):  # which are counted among those
        cases = [replace(case, ids=case.ids or visible[case.call]) for case in cases]
    cases = _sized(cases)
    chosen_from = _chosen_from(facts, launch)
    are_chosen = all(case.ids is not None and _speaks_of(case.ids, chosen_from) for case in cases)
    if cases and all(case.tests and case.is_known for case in cases):
        ids = _by_condition([*cases, *_picks(facts, launch)], _ONE_PROCESS)
        return Given(ids, are_chosen=are_chosen)
    known = [case for case in cases if case.is_known]
    ids = next((case.ids for case in [*(case for case in known if not case.tests), *known]), None)
    others = [case for case in cases if not case.is_known or case.ids != ids]
    if not others:
        return Given(ids, are_chosen=are_chosen)
    return Given(ids, others[-1].call, others[-1].is_known, ids, are_chosen=are_chosen)


def _chosen_from(facts: Facts, launch: Launch) -> list[ast.AST]:
    """What makes GPUs visible behind the launch."""
    return [node for kind, node in launch.late if kind == DEVICES]


def _speaks_of(ids: str, chosen_from: list[ast.AST]) -> bool:
    """Whether `device_ids` are made of what the visible GPUs are made of, too: `args.gpus`, or numbers among theirs."""
    given = ast.parse(ids, mode="eval").body

    def is_among(value: ast.expr) -> bool:
        numbers, visible = _numbers(given), _numbers(value)
        is_same = ids == ast.unparse(value) or bool(_read(given) & _read(value))
        return is_same if numbers is None or visible is None else {*numbers} <= {*visible}

    return all(isinstance(node, ast.Assign) and is_among(node.value) for node in chosen_from)


def _read(node: ast.AST) -> set[str]:
    """The names, and the attributes of names, that an expression reads."""
    parts = {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return parts | names_in(node)


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


def _is_never_reached(case: _Case) -> bool:
    """Whether what must be true for a wrap is a constant that isn't: a parameter's default that nobody changes."""
    return any(test in ("None", "False", "0", "[]") for test in case.tests)


def _made_visible_later(facts: Facts, launch: Launch) -> str | None:
    """What CUDA_VISIBLE_DEVICES is set to behind the launch, if that, and when it is set, is known before."""
    cases = []
    for node in (node for kind, node in launch.late if kind == DEVICES):
        if not isinstance(node, ast.Assign):
            return None
        ids = written(facts, launch, node.value)
        asked = [(test, told(facts, launch, test, node.value)) for test in all_terms(facts, launch, node)]
        tests = [there for test, there in asked if there is None or not is_true_anyway(facts, test, least=2)]
        if ids is None or not all(test is not None and _is_plain(facts, test) for test in tests):
            return None
        texts = tuple(_as_ranks_see_it(ast.unparse(test)) for test in tests if test is not None)
        cases.append(_Case(node, ids, True, texts))
    # The last one that is reached counts.
    return _by_condition(cases[::-1], None) if cases else None


def _picks(facts: Facts, launch: Launch) -> Iterator[_Case]:
    """The GPUs to which the script goes where nothing is wrapped: `net.cuda(args.gpu)`, and on which condition."""
    for call in facts.picking:
        pick = call.args[0]
        there = told(facts, launch, pick)
        if not isinstance(there, (ast.Name, ast.Attribute)) or not facts.comes_to(launch, call):
            continue
        text = ast.unparse(there)
        parts = [part for _, part in _parts(facts, launch, call, text)]
        tests = [_as_ranks_see_it(ast.unparse(part)) for part in reversed(parts) if part is not None]
        is_told = len(tests) == len(parts) and all(part is None or _is_plain(facts, part) for part in parts)
        # (`x.cuda(None)` is for the current one: is it a number, a condition says so.)
        is_number = last_name(call.func) == "set_device" or any(text in _read(ast.parse(test)) for test in tests)
        asking = [test for test in tests if ASKS_FOR_DDP.search(test)]  # the script's own, which is off then
        if is_told and is_number and all(test.startswith("not ") for test in asking):
            yield _Case(call, f"[{text}]", True, tuple(dict.fromkeys(test for test in tests if test not in asking)))


def picked_later(facts: Facts, launch: Launch) -> list[ast.expr]:
    """The GPUs that are picked where nothing is wrapped, by the one process then, and not known at the launch."""
    if launch.statement is None:
        return []
    cases = [case for case in _cases(facts, launch) if case.call not in facts.wraps.taken_off]
    if not cases or any(len(case.tests) != 1 for case in cases):
        return []
    picks = _picked_apart(facts, launch, {case.tests[0] for case in cases})
    return [pick for pick in picks if told(facts, launch, pick) is None]


def _picked_apart(facts: Facts, launch: Launch, tests: set[str]) -> list[ast.expr]:
    opposite = set(map(_opposite, tests))
    picks = [pick for pick in facts.picked if isinstance(pick, ast.Attribute)]
    return [pick for pick in picks if opposite <= set(map(ast.unparse, all_terms(facts, launch, pick)))]


def _by_condition(cases: list[_Case], otherwise: str | None) -> str | None:
    """`[0, 1] if count == 2 else [0]`: the devices of each wrap where it is reached, and others where none is."""
    found: dict[str | None, list[str]] = {}
    passed: list[set[str]] = []  # what isn't all true any more behind the `else`
    for case in _merged(cases):
        if any(each <= {*case.tests} for each in passed):
            continue
        is_next = case.ids not in found or case.ids == [*found][-1]
        tests = [test for test in case.tests if not is_next or not _follows(test, case.tests, passed)]
        if not tests:
            otherwise = case.ids
            break
        text = " and ".join(f"({test})" if " or " in test and len(tests) > 1 else test for test in tests)
        if text not in found.setdefault(case.ids, []):
            found[case.ids].append(text)
        passed.append({*case.tests})
    if {otherwise, *found} == {otherwise}:
        return otherwise
    if [*found] == [None] and len(found[None]) == 1 and found[None][0].startswith("not ") and otherwise is not None:
        return f"{otherwise} if {found[None][0][len('not ') :]} else None"
    if otherwise is None and [[each] for each in found] == [*found.values()]:
        return f"{next(iter(found))} or None"
    return "".join(f"{ids} if {_any(tests)} else " for ids, tests in found.items()) + str(otherwise)


def _follows(test: str, tests: tuple[str, ...], passed: list[set[str]]) -> bool:
    """Whether a test is true where the others are, as otherwise a condition before had been true."""
    return any(each <= {*tests, _opposite(test)} - {test} for each in passed)


def _any(tests: list[str]) -> str:
    return " or ".join(f"({test})" if " and " in test and len(tests) > 1 else test for test in tests)


def _opposite(test: str) -> str:
    return ast.unparse(negated(ast.parse(test, mode="eval").body))


def _merged(cases: list[_Case]) -> list[_Case]:
    """Cases one behind the other with the same devices, as few and with as few tests as say the same."""
    merged: list[_Case] = []
    for _, group in groupby(cases, key=lambda case: case.ids):
        alike = list(group)
        merged += [replace(alike[0], tests=tests) for tests in _simplest([case.tests for case in alike])]
    return merged


def _simplest(ways: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Tests all of which are true in one of the `ways`."""
    ways = list(map(_without_implied, ways))
    for one, other in permutations(range(len(ways)), 2):
        together = _together(ways[one], ways[other])
        if together is not None:
            left = [way for number, way in enumerate(ways) if number not in (one, other)]
            return _simplest([*left[: min(one, other)], *together, *left[min(one, other) :]])
    return ways


def _without_implied(tests: tuple[str, ...]) -> tuple[str, ...]:
    """Tests without `mode != "eval"` where `mode == "train"` stands."""
    values = dict(filter(None, map(_values_of, tests)))

    def is_implied(test: str) -> bool:
        excluded = _values_of(_opposite(test))
        return excluded is not None and excluded[0] in values and values[excluded[0]].keys().isdisjoint(excluded[1])

    return tuple(test for test in tests if not is_implied(test))


def _together(first: tuple[str, ...], second: tuple[str, ...]) -> list[tuple[str, ...]] | None:
    """Two ways with fewer tests that say the same; None where there are none."""
    if set(first) <= set(second):
        return [first]
    rest = tuple(test for test in second if test != _opposite(" and ".join(first)))
    if rest != second:
        return [first, rest]
    only, other = set(first) - set(second), set(second) - set(first)
    if len(only) != 1 or len(other) != 1:
        return None
    (test,), (against,) = only, other
    if test == _opposite(against):
        return [tuple(each for each in first if each != test)]
    of, of_other = _values_of(test), _values_of(against)
    if of is None or of_other is None or of[0] != of_other[0]:
        return None
    either = f"{of[0]} in ({', '.join({**of[1], **of_other[1]})})"
    return [tuple(either if each == test else each for each in first)]


def _values_of(test: str) -> tuple[str, dict[str, None]] | None:
    """`mode` and its values of `mode == "train"` or `mode in ("train", "eval")`."""
    node = ast.parse(test, mode="eval").body
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.In)):
        return None
    values = [node.comparators[0]] if isinstance(node.ops[0], ast.Eq) else getattr(node.comparators[0], "elts", [])
    if not values or not all(isinstance(value, ast.Constant) for value in values):
        return None
    return ast.unparse(node.left), dict.fromkeys(map(ast.unparse, values))


def _cases(facts: Facts, launch: Launch) -> Iterator[_Case]:
    # The script's own distributed training has a condition of its own, and what else wraps isn't known to be reached.
    by_test = not facts.wraps.functional and not facts.wraps.values
    for wrap in facts.wraps.models:
        is_for_all = wrap.device_ids is None or means_all(facts, wrap.device_ids)
        if is_for_all and facts.comes_to(launch, wrap.call):
            yield _Case(wrap.call, None, True, _tests(facts, launch, wrap.call, None) if by_test else ())
    for each, call in facts.wraps.device_ids:
        if facts.comes_to(launch, call) and not means_all(facts, each):
            ids = written(facts, launch, each)
            is_known, ids = ids is not None, None if ids == "None" else ids
            yield _Case(call, ids, is_known, _tests(facts, launch, call, ids) if by_test else ())


def _visible_there(facts: Facts, launch: Launch, call: ast.AST) -> str | None:
    """What CUDA_VISIBLE_DEVICES is set to in the same branch, above a wrap for all devices."""
    around = {call, *facts.source.ancestors(call)}
    for node in (node for kind, node in launch.late if kind == DEVICES and isinstance(node, ast.Assign)):
        block = facts.source.block(node)
        if not around.isdisjoint(block[block.index(node) + 1 :]):
            return written(facts, launch, node.value)
    return None


def _sized(cases: list[_Case]) -> list[_Case]:
    """Cases without `len(ids) > 1`: for one of them one process starts. Wraps that are reached then must agree."""
    for number, case in enumerate(cases):
        for test in case.tests:
            if test in (f"{each} {ask}" for each in _sizes(case.ids or "") for ask in ("> 1", ">= 2", "!= 1")):
                first = f"{case.ids}[0]"
                alike = (first, f"[{first}]", f"str({first})")
                behind = [each for each in cases if _opposite(test) in each.tests]
                if all(each.ids in (case.ids, *alike) for each in behind):
                    cases = [replace(each, ids=case.ids) if each in behind else each for each in cases]
                    cases[number] = replace(case, tests=tuple(each for each in case.tests if each != test))
    return cases


def unknown(facts: Facts, launch: Launch) -> int:
    """How much of the devices, of wraps and visible ones, and of the conditions of models' wraps isn't known there."""
    ids = [(each, call) for each, call in facts.wraps.device_ids if facts.comes_to(launch, call)]
    missing = sum(not means_all(facts, each) and told(facts, launch, each) is None for each, _ in ids)
    chosen = (each.value for each in _chosen_from(facts, launch) if isinstance(each, ast.Assign))
    missing += sum(told(facts, launch, value) is None for value in chosen)
    for wrap in () if facts.beside_ddp else facts.wraps.models:
        if facts.comes_to(launch, wrap.call):
            tests = _parts(facts, launch, wrap.call, None)
            missing += sum(there is None or not _is_plain(facts, there) for _, there in tests)
    return missing


def untold_condition(facts: Facts, launch: Launch) -> str | None:
    """What must be true for all wraps to be reached and isn't known at the launch, if that is one thing."""
    cases = [case for case in _cases(facts, launch) if case.call not in facts.wraps.taken_off]
    parts = [_parts(facts, launch, case.call, case.ids) for case in cases if isinstance(case.call, ast.Call)]
    untold = [{ast.unparse(part) for part, there in each if there is None} for each in parts]
    shared = set.intersection(*untold) if untold else set()
    return min(shared, key=len) if shared else None


def _tests(facts: Facts, launch: Launch, call: ast.Call, ids: str | None) -> tuple[str, ...]:
    """The conditions under which a wrap is reached, by what of them is known at the launch."""
    known = (there for _, there in _parts(facts, launch, call, ids) if there is not None and _is_plain(facts, there))
    found = [_as_ranks_see_it(ast.unparse(there)) for there in known if not is_true_constant(there)]
    if launch.test is not None:  # which asks for the script's own DDP already
        found = [test for test in found if not ASKS_FOR_DDP.search(test)]
    return tuple(dict.fromkeys(reversed(found)))


def _parts(facts: Facts, launch: Launch, call: ast.Call, ids: str | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What must be true for a wrap to be reached and isn't so anyway, as it is written and as it is at the launch."""
    least = 2 if ids is None else 1
    for term in all_terms(facts, launch, call):
        for part in reversed(term.values) if isinstance(term, ast.BoolOp) and isinstance(term.op, ast.And) else [term]:
            there = with_and(told(facts, launch, part, call))
            folded = part if there is None or names_in(there) else there  # `gpus >= 1` where `gpus` is 1
            if not any(is_true_anyway(facts, each, least) for each in (part, folded)):
                yield part, there


def _as_ranks_see_it(test: str) -> str:
    """A condition that is the same in each rank, which sees one device, as in the process that starts them."""
    for count in DEVICE_COUNTS:
        test = test.replace(f"{count}()", "ddp.device_count()")
    return test


def _is_plain(facts: Facts, test: ast.expr) -> bool:
    """Whether a condition only reads: what is written once more must be the same again, and short."""
    parts = list(ast.walk(test))
    counted = {part for call in parts if _only_looks(facts, call) for part in ast.walk(call)}
    return all(part in counted or isinstance(part, _PLAIN) for part in parts)


def _only_looks(facts: Facts, node: ast.AST) -> bool:
    """Whether a call counts devices or elements, or asks for the truth or the start of something."""
    if not isinstance(node, ast.Call):
        return False
    compares = isinstance(node.func, ast.Attribute) and node.func.attr in ("startswith", "endswith")
    return compares or facts.names.qualified(node.func) in _LOOKING


def _sizes(ids: str) -> Iterator[str]:
    """How many `device_ids` are, as a script may write it."""
    yield f"len({ids})"
    for start, end in (("range(", ")"), ("list(range(", "))"), ("[*range(", ")]")):
        if ids.startswith(start) and ids.endswith(end):
            yield ids[len(start) : -len(end)]
