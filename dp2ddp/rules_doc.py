"""The rules, shown: in the terminal, and as docs/rules.md (``python -m dp2ddp.rules_doc > docs/rules.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from click import style, wrap_text

from dp2ddp.rules import Example, Rule, all_rules

_ESSENTIAL = ", ".join(rule.id for rule in all_rules() if rule.essential)
# Examples keep the formatting that users have, so ruff is told to leave the page alone.
_INTRODUCTION = f"""\
<!-- fmt: off -->
# The rules

Made by `python -m dp2ddp.rules_doc > docs/rules.md`; do not edit. Every example is a test, and shows its own rule alone
(and those named with it); a conversion runs them all. `dp2ddp rules DDP002` shows one in the terminal, and what it
leaves alone. `--ignore DDP011` leaves a rule's edits to you, with a note for each. These can't be left out, because the
others need them: {_ESSENTIAL}.
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
    for example in rule.examples:
        yield f"{_kind(example).capitalize()}{_conditions(example)}:"
        yield ""
        yield f"```{'diff' if example.diff else 'python'}"
        yield (example.diff or example.unchanged).rstrip("\n")
        yield "```"
        yield ""


def _conditions(example: Example) -> str:
    flags = f"`{flags_of(example)}`" if flags_of(example) else ""
    others = f"together with {', '.join(example.also)}" if example.also else ""
    conditions = ", ".join(filter(None, [flags, others]))
    return f" ({conditions})" if conditions else ""


def _kind(example: Example) -> str:
    return "converted" if example.diff else "only noted"


def flags_of(example: Example) -> str:
    """The options of the command line that make `example`, its rule's id left out."""
    names = ("sync_bn", "allow_ddp", "rows")
    return " ".join(f"--{name.replace('_', '-')}" for name in names if getattr(example, name))


def rules_lines(rules: Sequence[Rule]) -> Iterator[str]:
    """Every rule, for the terminal: a line for each, with its id and title."""
    for rule in rules:
        yield f"{style(rule.id, bold=True, fg='cyan')}  {rule.title}"


def rule_lines(rule: Rule) -> Iterator[str]:
    """One rule, for the terminal, with its examples, and with what it leaves alone."""
    yield from rules_lines([rule])
    yield ""
    yield wrap_text(" ".join(rule.why.split()), width=100)
    shown = [*((_kind(example), example) for example in rule.examples), *(("left alone", each) for each in rule.valid)]
    for title, example in shown:
        flags = f" with {flags_of(example)}" if flags_of(example) else ""
        yield ""
        yield style(f"{title}{flags}:", bold=True)
        yield from (f"    {line}".rstrip() for line in (example.diff or example.unchanged).rstrip("\n").split("\n"))


if __name__ == "__main__":
    print(page(), end="")
