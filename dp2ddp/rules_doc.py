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
"Left alone" is what one might expect a rule to change, and it doesn't: another rule may, or nothing has to.
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
        if example.after:
            yield from _code("Before", example.before)
        yield from _converted("After" if example.after else "Only noted", example)
    for example in rule.valid:
        yield from _converted("Left alone", example)


def _converted(title: str, example: Example) -> Iterator[str]:
    flags = f"`{flags_of(example)}`" if flags_of(example) else ""
    others = f"together with {', '.join(example.also)}" if example.also else ""
    conditions = ", ".join(filter(None, [flags, others]))
    yield from _code(f"{title} ({conditions})" if conditions else title, example.converted)


def _code(title: str, code: str) -> Iterator[str]:
    yield f"{title}:"
    yield ""
    yield "```python"
    yield code.rstrip("\n")
    yield "```"
    yield ""


if __name__ == "__main__":
    print(page(), end="")
