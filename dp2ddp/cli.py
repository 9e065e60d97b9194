"""The command line: commands and their options, nothing else."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import click

from dp2ddp import __version__
from dp2ddp.command import terminal
from dp2ddp.command.click_group import FOUND, Group
from dp2ddp.command.options import CONVERSION, FORMAT, PATH, SPEECH, Command, RuleId
from dp2ddp.verify.arguments import verify

_GARBAGE_AFTER = 200_000  # objects

_MAIN_HELP = """Turn an nn.DataParallel training script into a DistributedDataParallel one that trains the same model:
same batches, same updates, same reported numbers, same checkpoint files.

\b
Examples:
  dp2ddp convert train.py                      show what would change
  dp2ddp convert train.py -o train_ddp.py      write the converted script
  dp2ddp convert train.py --in-place --strict  exit 1 while notes are open
  dp2ddp check .                               list what would change
  dp2ddp verify train.py -- --epochs 1         run both and compare them, step by step
  dp2ddp rules DDP003                          what a rule does, before and after
"""

_MORE = """Each command has a --help of its own. The documentation is in docs/ of dp2ddp's repository: begin with
docs/quickstart.md; docs/troubleshooting.md has every message."""

_CONVERT_HELP = """Convert scripts or a project. INPUT is a script (- for standard input), a notebook, several of
them, or a directory.

Without an output, the diff goes to standard output and nothing is written. The summary goes to standard error. What
scripts import from their project is followed.

OUTPUT is a file, or a folder for the script and all that it imports (write its name with a / at the end). For a
directory it is a folder for a copy of the whole, without .git, caches, virtual environments and what git
ignores. A notebook becomes a script. All files are written, or none.

--html also works without an output.

Exit codes: 0 done, or nothing to do; 1 notes are open (with --strict); 2 bad input, or a script that can't be
converted: nothing is written; 3 a mistake in dp2ddp. Scripts of a directory that you didn't name are left as they are
where they can't be converted, and listed as open notes.

\b
Examples:
  dp2ddp convert train.py -o train_ddp.py --vendor
  dp2ddp convert tools/train.py -o converted/
  dp2ddp convert project/ -o project_ddp/ --entry train.py --entry test.py
  dp2ddp convert train.ipynb -o train_ddp.py
  dp2ddp convert train.py --html report.html
  dp2ddp convert train.py | patch -p0
  cat train.py | dp2ddp convert - -o - > train_ddp.py
"""

_CHECK_HELP = """List what would be converted in scripts, notebooks and directories; change nothing.

Shows each line that a conversion would change, and each that needs a person, with its rule and what becomes of it.
GitHub and readers of SARIF show it in the pull request. Exit codes: 0 nothing to convert, 1 something found, 2 bad
input, 3 a mistake in dp2ddp.

\b
Examples:
  dp2ddp check .
  dp2ddp check train.py tools/ --output-format github
"""


@click.group(cls=Group, help=_MAIN_HELP, epilog=_MORE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="dp2ddp")
def main() -> None:
    """The command ``dp2ddp``."""
    # As mypy does: what a command builds are trees that live until its end, and looking through them for garbage takes
    # a tenth of its time.
    gc.set_threshold(_GARBAGE_AFTER)


@main.command(cls=Command, help=_CONVERT_HELP, short_help="Convert scripts, notebooks, a project.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o", "--output", metavar="OUTPUT", type=PATH, help="Write to this file or folder; - for standard output."
)
@click.option("--in-place", is_flag=True, help="Write over INPUT.")
@click.option("--force", is_flag=True, help="Overwrite OUTPUT, or another runtime copy, where it exists.")
@click.option(
    "--vendor", "vendored", is_flag=True, help="Copy the runtime beside the scripts, so they need only torch."
)
@CONVERSION
@click.option("--strict", is_flag=True, help="Exit with 1 while notes are open.")
@FORMAT
@click.option(
    "--html", metavar="FILE", type=PATH, help="Write a page to look at: what changes and why, what needs a person."
)
@SPEECH
@click.pass_context
def convert(ctx: click.Context, /, **asked: Any) -> None:
    """Converts scripts or a project."""
    # Each command imports what it needs itself: --help and --version need nothing, and libcst takes long.
    from dp2ddp import convert as conversion

    _check_usage(**asked)
    code = conversion.run(conversion.Request(options=_options(asked), verbose=terminal.is_verbose(), **asked))
    if code == FOUND and terminal.is_quiet():
        terminal.show_error("dp2ddp: notes are open, which --strict doesn't allow; without --quiet they are listed")
    ctx.exit(code)


def _options(asked: dict[str, Any]) -> Any:
    """Those of a command's arguments that say how to convert, taken out of the others; and what the project says."""
    from dp2ddp.command import settings
    from dp2ddp.rules import Options

    found = {name: asked.pop(name) for name in Options.__dataclass_fields__ if name in asked}
    return Options(**{**found, "ignore": frozenset(found["ignore"])}, functions=settings.functions(asked["inputs"]))


@main.command(cls=Command, help=_CHECK_HELP, short_help="List what would be converted.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@CONVERSION
@FORMAT
@SPEECH
@click.pass_context
def check(ctx: click.Context, /, form: str, **asked: Any) -> None:
    """Lists what would be converted."""
    from dp2ddp import convert as conversion
    from dp2ddp.convert import formats

    found = conversion.check(options=_options(asked), **asked)
    terminal.show_results(filter(None, [formats.FORMATS[form](found)]))
    terminal.show_messages([formats.in_sum(found)])
    ctx.exit(FOUND if found else 0)


@main.command(cls=Command, short_help="List the rules, or show one.")
@click.argument("rule_id", metavar="[RULE]", required=False, type=RuleId())
@SPEECH
def rules(rule_id: str | None) -> None:
    """List the rules; with RULE, show that one with its code before and after."""
    from dp2ddp import rules_doc
    from dp2ddp.rules import all_rules, rule

    found = rule(rule_id) if rule_id else None
    terminal.show_results(rules_doc.rules_lines(all_rules()) if found is None else rules_doc.rule_lines(found))


def _check_usage(
    inputs: Sequence[str], output: str | None, in_place: bool, vendored: bool, form: str, **more: object
) -> None:
    from dp2ddp.project.text_files import STANDARD

    if in_place and output is not None:
        raise click.UsageError("--in-place and --output exclude each other")
    if in_place and STANDARD in inputs:
        raise click.UsageError("--in-place needs a file, not standard input")
    if vendored and not in_place and output in (None, STANDARD):
        raise click.UsageError("--vendor needs a file to put the runtime beside: --output or --in-place")
    if output == STANDARD and len(inputs) > 1:
        raise click.UsageError("several files can't go to standard output")
    if output == STANDARD and form != "text":
        raise click.UsageError("--format and the script can't both go to standard output")


main.add_command(verify)
