"""The ways to what happens under conditions: what must be true on each, as text, in as few words as say it."""

from __future__ import annotations

import ast
from itertools import permutations

from dp2ddp.analysis.control.conditions import negated


def on_condition(ids: str | None, ways: list[tuple[str, ...]], otherwise: str | None) -> str | None:
    """`[0, 1] if args.several else [0]`."""
    if ids == otherwise:
        return ids
    if ways == [(ids,)] and otherwise is None:
        return f"{ids} or None"
    either = [" and ".join(f"({each})" if " or " in each and len(way) > 1 else each for each in way) for way in ways]
    text = " or ".join(f"({each})" if " and " in each and len(ways) > 1 else each for each in either)
    if ids is None and len(ways) == len(ways[0]) == 1 and text.startswith("not "):
        return f"{otherwise} if {text[len('not ') :]} else None"
    return f"{ids} if {text} else {otherwise}"


def opposite_of(test: str) -> str:
    """The opposite of a test."""
    return ast.unparse(negated(ast.parse(test, mode="eval").body))


def is_elsewhere(tests: tuple[str, ...], way: tuple[str, ...]) -> bool:
    """Whether nothing else is asked where the way isn't taken."""
    return {*tests} <= {*way, *map(opposite_of, way)}


def simplest(ways: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The conditions, all of one of which are true where a model is wrapped; as few as say the same."""
    ways = [_without_implied(way) for way in ways]
    for one, other in permutations(ways, 2):
        only, against = set(one) - set(other), set(other) - set(one)
        rest = [way for way in ways if way not in (one, other)]
        if not only:
            return simplest([*rest, one])
        passed = tuple(test for test in other if test != opposite_of(" and ".join(one)))
        passed = tuple(test for test in passed if not {*one} <= {*passed, opposite_of(test)} - {test})
        if passed != other:
            return simplest([*rest, one, passed])
        either = _either(*only, *against) if len(only) == len(against) == 1 else None
        if either is not None:
            return simplest([*rest, tuple(each for test in one for each in ([test] if test in other else either))])
    return ways


def _without_implied(way: tuple[str, ...]) -> tuple[str, ...]:
    """Without `x != 1` beside `x == 2`, and without `not (a and b)` beside `not a`."""
    way = tuple(map(_in_brief, way))
    way = tuple(test for test in way if not {*way} & {*map(opposite_of, _joined_in(opposite_of(test)))})
    known = {asked: values.keys() for asked, values in map(_one_of, way) if values}
    denied = ((test, *_one_of(opposite_of(test))) for test in way)
    return tuple(
        test for test, asked, values in denied if not values or not known.get(asked) or known[asked] & values.keys()
    )


def alternatives(test: str | None) -> list[ast.expr]:
    """What is false wherever a test is true: `a` and `b` of `not (a or b)`."""
    other = negated(ast.parse(test or "True", mode="eval").body)
    return other.values if isinstance(other, ast.BoolOp) and isinstance(other.op, ast.Or) else [other]


def _in_brief(test: str) -> str:
    """`x in (1, 2)` for `x == 1 or x == 2`; any other test as it is."""
    node = ast.parse(test, mode="eval").body
    if not isinstance(node, ast.BoolOp) or not isinstance(node.op, ast.Or):
        return test
    first, *others = [ast.unparse(each) for each in node.values]
    for other in others:
        both = _either(first, other)
        if not both:
            return test
        first = both[0]
    return first


def _joined_in(test: str) -> list[str]:
    """The parts of `a and b`; none of another test."""
    node = ast.parse(test, mode="eval").body
    return [*map(ast.unparse, node.values)] if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else []


def _either(one: str, other: str) -> list[str] | None:
    """Two tests of which one has to be true, as one test, or none; None where that takes both."""
    if opposite_of(one) == other:
        return []
    (asked, values), (also, others) = _one_of(one), _one_of(other)
    alike = bool(values and others) and asked == also
    return [ast.unparse(ast.parse(f"{asked} in ({', '.join({**values, **others})},)"))] if alike else None


def _one_of(test: str) -> tuple[str, dict[str, None]]:
    """What is asked for in `x == 1` or `x in (1, 2)`, and the constants that it may be; none for another test."""
    node = ast.parse(test, mode="eval").body
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return "", {}
    right = node.comparators[0]
    values = [right] if isinstance(node.ops[0], ast.Eq) else getattr(right, "elts", [])
    is_one = isinstance(node.ops[0], (ast.Eq, ast.In)) and all(isinstance(each, ast.Constant) for each in values)
    return ast.unparse(node.left), dict.fromkeys(map(ast.unparse, values)) if is_one else {}
