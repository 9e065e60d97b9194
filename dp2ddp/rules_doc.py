"""Makes docs/rules.md from the rules: ``python -m dp2ddp.rules_doc > docs/rules.md``."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.convert.report import flags_of
from dp2ddp.rules import Example, Rule, all_rules

_ESSENTIAL = ", ".join(rule.id for rule in all_rules() if rule.essential)
# Examples keep the formatting that users have, so ruff is told to leave the page alone.
_INTRODUCTION = f"""\
<!-- fmt: off -->
# The rules

Made by `python -m dp2ddp.rules_doc > docs/rules.md` from the rules themselves; do not edit. Every example is a test.
An example shows its own rule alone (and those named with it); a real conversion runs them all, as they need each other.
`dp2ddp rules DDP002` shows one rule in the terminal. `--ignore DDP011` leaves a rule's edits to you, with a note for
each; what can't be left out, because the others are only right together with it: {_ESSENTIAL}.
"""


def page() -> str:
    """The whole page, as Markdown."""
    rules = all_rules()
    table = ["| id | rule |", "|---|---|", *(f"| [{rule.id}](#{rule.id.lower()}) | {rule.title} |" for rule in rules)]
    return "\n".join([_INTRODUCTION, *table, "", *(line for rule in rules for line in _section(rule))])


def _section(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id}"
    yield ""
    yield f"**{rule.title}.** {' '.join(rule.why.split())}"
    yield ""
    yield f"Source: `{type(rule).__module__.replace('.', '/')}.py`"
    yield ""
    for example in rule.examples:
        yield from _example(example)


def _example(example: Example) -> Iterator[str]:
    others = f"together with {', '.join(example.also)}" if example.also else ""
    conditions = ", ".join(filter(None, [f"`{flags_of(example)}`" if flags_of(example) else "", others]))
    yield from _code("Before:", example.before)
    yield from _code(f"After ({conditions}):" if conditions else "After:", example.after)


def _code(title: str, code: str) -> Iterator[str]:
    yield title
    yield ""
    yield "```python"
    yield code.rstrip("\n")
    yield "```"
    yield ""


if __name__ == "__main__":
    print(page(), end="")
