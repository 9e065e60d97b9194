"""The rules, one file each, found by themselves: a new file in this folder is a new rule."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from dp2ddp.errors import BadInput
from dp2ddp.rules.base import Example, Options, Rule

__all__ = ["Example", "Options", "Rule", "all_rules", "known_id", "rule"]


@lru_cache(maxsize=1)
def all_rules() -> tuple[Rule, ...]:
    """One object of every rule in this package, sorted by id."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    own = (each for each in Rule.__subclasses__() if each.__module__.startswith(f"{__name__}."))
    return tuple(sorted((each() for each in own), key=lambda each: each.id))


def rule(rule_id: str) -> Rule | None:
    """The rule with this id (in any case), or None."""
    return next((rule for rule in all_rules() if rule.id == rule_id.upper()), None)


def known_id(rule_id: str, place: str, line: int | None = None, *, ignored: bool = False) -> str:
    """The id of a rule that a user typed in any case, as the rule has it.

    Args:
        place, line: where, for the error.
        ignored: the rule is to be left out.

    Raises:
        BadInput: there is no such rule, or it is to be left out and the others need it.
    """
    found = rule(rule_id)
    if found is None:
        raise BadInput(place, line=line, what=f"no rule {rule_id!r}", todo="`dp2ddp rules` lists them")
    if ignored and found.essential:
        todo = "what the other rules do is only right together with it"
        raise BadInput(place, line=line, what=f"{found.id} can't be left out ({found.title})", todo=todo)
    return found.id
