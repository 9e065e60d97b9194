"""Options that mean the same in every command."""

from __future__ import annotations

from typing import Any, Callable

import click

from dp2ddp.command import terminal

FORMATS = ("full", "concise", "json", "github", "sarif", "text")
#: A name of a file or folder, completed by the shell; commands look at it themselves, and say better what is wrong.
PATH = click.Path(readable=False, allow_dash=True)

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class RuleId(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer click alone
    """The id of a rule, in any case."""

    name = "rule"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The id as rules have it.

        Raises:
            BadInput: there is no such rule, or it is an option's value and the rule can't be ignored.
        """
        from dp2ddp.rules import known_id

        is_option = isinstance(param, click.Option)
        return known_id(str(value), f"--{param.name}" if param and is_option else "rules", ignored=is_option)


def _together(*decorators: _Decorator) -> _Decorator:
    """Options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(decorators):
            function = each(function)
        return function

    return decorate


#: How a command speaks.
SPEECH = _together(
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors."),
    click.option("-v", "--verbose", is_flag=True, help="Say more: every line and its reason."),
    click.option(
        "--color",
        type=click.Choice(terminal.COLORS),
        default="auto",
        show_default=True,
        help="Colors; auto: on a terminal, unless NO_COLOR is set.",
    ),
)

#: What is converted, and how; the same for whoever converts and whoever only looks.
CONVERSION = _together(
    click.option(
        "--entry",
        "entries",
        metavar="FILE",
        multiple=True,
        type=PATH,
        help="A script of the directory that is started; may be repeated. Found by itself otherwise.",
    ),
    click.option("--sync-bn", is_flag=True, help="Convert BatchNorm to SyncBatchNorm (differs from DataParallel)."),
    click.option(
        "--allow-ddp",
        is_flag=True,
        help="Convert scripts that can also set up DistributedDataParallel themselves, and leave that part of them "
        "alone.",
    ),
    click.option(
        "--rows",
        is_flag=True,
        help="Rows stay apart in each loader's `collate_fn`: each process loads its own, checked as it runs.",
    ),
    click.option(
        "--ignore",
        metavar="RULE",
        type=RuleId(),
        multiple=True,
        help="Leave this rule's edits to a person: each becomes a note. May be repeated.",
    ),
)

#: The form of what is found, by ruff's names.
FORMAT = click.option(
    "--output-format",
    "--format",
    "form",
    metavar="FORM",
    type=click.Choice(FORMATS),
    default="text",
    help="full, concise, json, github or sarif: what is found, on standard output.",
)


class Command(click.Command):
    """A command that speaks as its options say."""

    def invoke(self, ctx: click.Context) -> Any:
        terminal.set_up(
            ctx,
            quiet=ctx.params.pop("quiet", False),
            verbose=ctx.params.pop("verbose", False),
            color=ctx.params.pop("color", "auto"),
        )
        return super().invoke(ctx)
