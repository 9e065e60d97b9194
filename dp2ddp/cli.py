"""The command line: commands and their options, nothing else."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import click

from dp2ddp import __version__
from dp2ddp.errors import BadInput, EditError
from dp2ddp.verify.cli import verify

FOUND = 1
BAD_INPUT = 2
INTERNAL = 3

# As mypy does: what a command builds are trees that live until its end, and looking through them for garbage takes a
# tenth of its time.
_GARBAGE_AFTER = 200_000  # objects

_MAIN_HELP = """Turn an nn.DataParallel training script into a DistributedDataParallel one that trains the same model:
same batches, same updates, same reported numbers, same checkpoint files.

\b
Examples:
  dp2ddp convert train.py                      show what would change
  dp2ddp convert train.py -o train_ddp.py      write the converted script
  dp2ddp convert train.py --in-place --strict  exit 1 if a person has to look at something
  dp2ddp check .                               list what would change, exit 1 if there is anything
  dp2ddp verify train.py -- --epochs 1         run both and compare them, step by step
  dp2ddp rules DDP003                          what a rule does, before and after
"""

_CONVERT_HELP = """Convert scripts or a project: INPUT is a script (- for standard input), a notebook, several of
them, or a directory.

What scripts import from their project is followed. Of one script, OUTPUT is a file, or a folder (that exists, or is
written with a / at its end) for it and the other files that have to change. Of a directory, OUTPUT is a folder for a
copy of all that is in it. A notebook becomes a script of its code cells; in place, or with an OUTPUT.ipynb, a notebook
that writes this script and starts it. All files are written or none. Left out of a directory: .git, what .gitignore
names, virtual environments, caches.

Without an output, the unified diff goes to standard output and nothing is written. The summary goes to standard error.
Exit codes: 0 done, 1 notes open (with --strict), 2 bad input, or a script that can't be converted: then nothing is
written, whatever else was given. Scripts that were found in a directory, and not named, are left as they are instead,
and listed; that is an open note.

--html writes one file, to be opened in a browser or sent around: also without an output, as a preview, and for a script
that can't be converted, to say why (the exit code stays 2).

\b
Examples:
  dp2ddp convert train.py -o train_ddp.py --vendor
  dp2ddp convert tools/train.py -o converted/
  dp2ddp convert project/ -o project_ddp/ --entry train.py --entry test.py
  dp2ddp convert train.ipynb -o train_ddp.py
  dp2ddp convert train.py --html report.html
  dp2ddp convert train.py | patch train.py
  cat train.py | dp2ddp convert - -o - > train_ddp.py
"""

_CHECK_HELP = """List what would be converted in scripts, notebooks and directories; change nothing.

Each line that a conversion would change, and each that needs a person, with its rule. In continuous integration the
form can be one that GitHub, GitLab, or a reader of SARIF shows in the pull request. Exit codes: 0 nothing to convert,
1 something found, 2 bad input.

\b
Examples:
  dp2ddp check .
  dp2ddp check train.py tools/ --format github
"""


class _Main(click.Group):
    """The command group; a user's mistakes come out as one line, with their exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BadInput as error:
            click.echo(f"dp2ddp: {error}", err=True)
            ctx.exit(BAD_INPUT)
        except EditError as error:
            click.echo(f"dp2ddp: internal error, nothing written; please report it with the script: {error}", err=True)
            ctx.exit(INTERNAL)


@click.group(cls=_Main, help=_MAIN_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dp2ddp")
def main() -> None:
    """The command ``dp2ddp``."""


@main.command(help=_CONVERT_HELP)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUTPUT", help="Write to this file or folder; - for standard output.")
@click.option(
    "--entry",
    "entries",
    metavar="FILE",
    multiple=True,
    help="A script of the directory that is started, or module:function; may be repeated. Found by itself otherwise.",
)
@click.option("--force", is_flag=True, help="Overwrite OUTPUT, or another runtime copy, where it exists.")
@click.option("--in-place", is_flag=True, help="Write over INPUT.")
@click.option(
    "--vendor", "vendored", is_flag=True, help="Copy the runtime beside the scripts, so they need only torch."
)
@click.option("--sync-bn", is_flag=True, help="Convert BatchNorm to SyncBatchNorm (differs from DataParallel).")
@click.option("--clean-keys", is_flag=True, help="Save checkpoints without `module.` in their keys.")
@click.option(
    "--allow-ddp",
    is_flag=True,
    help="Convert scripts that can also set up DistributedDataParallel themselves, and leave that part of them alone.",
)
@click.option(
    "--ignore",
    metavar="RULE",
    multiple=True,
    help="Leave this rule's edits to a person: each becomes a note. May be repeated.",
)
@click.option("--annotate", is_flag=True, help="Write each note into the script, as a comment `# dp2ddp: ...`.")
@click.option("--strict", is_flag=True, help="Exit with 1 while notes are open.")
@click.option(
    "--report",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The form of the summary on standard error.",
)
@click.option("--html", metavar="FILE", help="Write a page to look at: what changes and why, what needs a person.")
@click.pass_context
def convert(
    ctx: click.Context,
    inputs: Sequence[str],
    output: str | None,
    entries: Sequence[str],
    force: bool,
    in_place: bool,
    vendored: bool,
    sync_bn: bool,
    clean_keys: bool,
    allow_ddp: bool,
    ignore: Sequence[str],
    annotate: bool,
    strict: bool,
    report: str,
    html: str | None,
) -> None:
    """Converts scripts or a project."""
    gc.set_threshold(_GARBAGE_AFTER)
    # Each command imports what it needs itself: --help and --version need nothing, and libcst takes long.
    from dp2ddp import convert as conversion
    from dp2ddp.convert import pipeline
    from dp2ddp.rules import Options

    _check_usage(inputs, output, in_place, vendored)
    options = pipeline.with_ignored(
        Options(sync_bn=sync_bn, clean_keys=clean_keys, annotate=annotate, allow_ddp=allow_ddp),
        ignore,
    )
    as_json = report == "json"
    request = conversion.Request(
        inputs, options, output, in_place, entries, force, vendored, strict=strict, as_json=as_json, html=html
    )
    ctx.exit(conversion.run(request))


@main.command(help=_CHECK_HELP)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "gitlab", "sarif"]),
    default="text",
    show_default=True,
    help="The form of what is found, on standard output.",
)
@click.option("--allow-ddp", is_flag=True, help="As for `convert`.")
@click.option("--sync-bn", is_flag=True, help="As for `convert`.")
@click.pass_context
def check(ctx: click.Context, inputs: Sequence[str], form: str, allow_ddp: bool, sync_bn: bool) -> None:
    """Lists what would be converted."""
    gc.set_threshold(_GARBAGE_AFTER)
    from dp2ddp.convert.check import check as find
    from dp2ddp.convert.formats import FORMATS
    from dp2ddp.convert.report import show_lines
    from dp2ddp.rules import Options

    found = find(inputs, Options(allow_ddp=allow_ddp, sync_bn=sync_bn))
    show_lines(filter(None, [FORMATS[form](found)]), to_error=False)
    ctx.exit(FOUND if found else 0)


@main.command()
@click.argument("rule_id", metavar="[RULE]", required=False)
def rules(rule_id: str | None) -> None:
    """List the rules; with RULE, show that one with its code before and after."""
    from dp2ddp import rules_doc
    from dp2ddp.convert.report import show_lines
    from dp2ddp.rules import all_rules, rule

    if rule_id is None:
        show_lines(rules_doc.rules_lines(all_rules()), to_error=False)
        return
    found = rule(rule_id)
    if found is None:
        raise BadInput("rules", what=f"no rule {rule_id!r}", todo="`dp2ddp rules` lists them")
    show_lines(rules_doc.rule_lines(found), to_error=False)


def _check_usage(inputs: Sequence[str], output: str | None, in_place: bool, vendored: bool) -> None:
    from dp2ddp.project.text_files import STANDARD

    if in_place and output is not None:
        raise click.UsageError("--in-place and --output exclude each other")
    if in_place and STANDARD in inputs:
        raise click.UsageError("--in-place needs a file, not standard input")
    if vendored and not in_place and output in (None, STANDARD):
        raise click.UsageError("--vendor needs a file to put the runtime beside: --output or --in-place")
    if output == STANDARD and len(inputs) > 1:
        raise click.UsageError("several files can't go to standard output")


main.add_command(verify)
