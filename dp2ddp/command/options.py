"""Options that mean the same in every command, and the command that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

import click

from dp2ddp.command import settings, terminal
from dp2ddp.errors import BadInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FORMATS = ("full", "concise", "json", "github", "gitlab", "sarif", "text")
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
        from dp2ddp.rules import check_ignored, known_id

        if isinstance(param, click.Option):
            return check_ignored(str(value), f"--{param.name}")
        return known_id(str(value), "rules")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from dp2ddp.rules import all_rules

        wanted = [rule for rule in all_rules() if not (rule.essential and isinstance(param, click.Option))]
        return [CompletionItem(r.id, help=r.title) for r in wanted if r.id.startswith(incomplete.upper())]


class KnownFunction(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer click alone
    """A function of a library, and what it does."""

    name = "function"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is, if the catalogue can take it."""
        from dp2ddp.analysis.catalogue import entry

        try:
            entry(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class _Flag(click.Option):
    """A flag whose ``--no-...`` is there, but not worth a place in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        secondary, self.secondary_opts = self.secondary_opts, []
        try:
            return super().get_help_record(ctx)
        finally:
            self.secondary_opts = secondary


def flag(name: str, short: str = "", *, dest: str = "", help: str) -> _Decorator:  # click says `help`, too
    """An option that is on or off; ``--no-NAME`` takes back what `pyproject.toml` says.

    Args:
        name: without dashes.
        short: with one dash, such as ``-q``.
        dest: what the command's function calls it, where that isn't `name`.
        help: what it does.
    """
    named = [each for each in (short, f"--{name}/--no-{name}", dest) if each]
    return click.option(*named, cls=_Flag, default=False, help=help)


def _together(*decorators: _Decorator) -> _Decorator:
    """Options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(decorators):
            function = each(function)
        return function

    return decorate


#: How a command speaks.
SPEECH = _together(
    flag("quiet", "-q", help="Say nothing but results and errors."),
    flag("verbose", "-v", help="Say more: every line and its reason."),
    click.option(
        "--color",
        type=click.Choice(terminal.COLORS),
        default="auto",
        show_default=True,
        help="Colors; auto: on a terminal, unless NO_COLOR is set.",
    ),
    click.option("--isolated", is_flag=True, help="Ignore pyproject.toml."),
)

#: What is converted, and how; the same for whoever converts and whoever only looks.
CONVERSION = _together(
    click.option(
        "--entry",
        "entries",
        metavar="FILE",
        multiple=True,
        type=PATH,
        help="A script of the directory that is started, or module:function; may be repeated. Found by itself "
        "otherwise.",
    ),
    flag("sync-bn", help="Convert BatchNorm to SyncBatchNorm (differs from DataParallel)."),
    flag(
        "allow-ddp",
        help="Convert scripts that can also set up DistributedDataParallel themselves, and leave that part of them "
        "alone.",
    ),
    flag("rows", help="Rows stay apart in each loader's `collate_fn`: each process loads its own, checked as it runs."),
    click.option(
        "--ignore",
        metavar="RULE",
        type=RuleId(),
        multiple=True,
        help="Leave this rule's edits to a person: each becomes a note. May be repeated.",
    ),
    # A table of settings: on a command line it would be read by nobody.
    click.option("--functions", type=KnownFunction(), multiple=True, hidden=True),
)

#: The form of what is found, by ruff's names.
FORMAT = click.option(
    "--output-format",
    "--format",
    "form",
    metavar="FORM",
    type=click.Choice(FORMATS),
    default="text",
    help="full, concise, json, github, gitlab or sarif: what is found, on standard output.",
)


class Command(click.Command):
    """A command with the options above, and settings for those that the command line leaves out.

    Attributes:
        files: the name of the argument that says what it works on; its settings are looked for from there.
        idle: options that a setting doesn't reach where they would make no sense (see `settings.Idle`).
    """

    def __init__(self, *args: Any, files: str = "", idle: settings.Idle | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.files = files
        self.idle = idle or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        again = list(args)
        rest = super().parse_args(ctx, args)
        given = ctx.params.get(self.files)
        if given is None or ctx.params.pop("isolated", False) or ctx.resilient_parsing:
            return rest
        found = settings.for_all(map(str, given if isinstance(given, tuple) else [given]))
        if found is None:
            return rest
        # What is asked for says where settings lie, and these what it is by default: so it is read twice.
        ctx.default_map = found.defaults(ctx, _commands(ctx), self.idle)
        ctx.params.clear()
        try:
            rest = super().parse_args(ctx, again)
        except (click.BadParameter, BadInput) as error:
            raise found.misread(error, ctx) from None
        del ctx.params["isolated"]
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        terminal.set_up(
            ctx,
            quiet=ctx.params.pop("quiet", False),
            verbose=ctx.params.pop("verbose", False),
            color=ctx.params.pop("color", "auto"),
        )
        return super().invoke(ctx)


def _commands(context: click.Context) -> Mapping[str, click.Command]:
    group = context.find_root().command
    assert isinstance(group, click.Group)
    return {name: each for name, each in group.commands.items() if isinstance(each, Command) and each.files}
