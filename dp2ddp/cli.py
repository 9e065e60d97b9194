"""The command line: commands and their options, nothing else."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dp2ddp import __version__
from dp2ddp.errors import BadInput, EditError
from dp2ddp.verify import COUNT

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict

NOTES_OPEN = 1
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
  dp2ddp verify train.py -- --epochs 1         run both and compare them, step by step
  dp2ddp rules DDP003                          what a rule does, before and after
"""

_CONVERT_HELP = """Convert scripts or a project: INPUT is a script (- for standard input), several, or a directory.

What scripts import from their project is followed. Of one script, OUTPUT is a file, or a folder (that exists, or is
written with a / at its end) for it and the other files that have to change. Of a directory, OUTPUT is a folder for a
copy of all that is in it. All files are written or none. Left out of a directory: .git, what .gitignore names, virtual
environments, caches.

Without an output, the unified diff goes to standard output and nothing is written. The summary goes to standard error.
Exit codes: 0 done, 1 notes open (with --strict), 2 bad input, or a script that can't be converted: then nothing is
written, whatever else was given. Scripts that were found in a directory, and not named, are left as they are instead,
and listed; that is an open note.

\b
Examples:
  dp2ddp convert train.py -o train_ddp.py --vendor
  dp2ddp convert tools/train.py -o converted/
  dp2ddp convert project/ -o project_ddp/ --entry train.py --entry test.py
  dp2ddp convert train.py | patch train.py
  cat train.py | dp2ddp convert - -o - > train_ddp.py
"""

_VERIFY_HELP = """Run SCRIPT (with nn.DataParallel) and its conversion side by side, and show whether they train the
same model. ARGS, after --, are the script's own.

Both run in scratch copies of the current directory; without --device cuda on the CPU, where nn.DataParallel is
emulated. Compared are the parameters after every optimizer step, the losses, the printed lines, the files written and
the exit codes. Exit codes: 0 agree, 1 differ, 2 could not run.

\b
Examples:
  dp2ddp verify train.py --nproc 2 -- --epochs 1
  dp2ddp verify train.py --converted train_ddp.py --steps 50 --plot losses.png
  dp2ddp verify cifar.py --synthetic-data --steps 10 -- --batch-size 32
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


class _Verify(click.Command):
    """A command whose `--synthetic-data` may be followed by a number, or by anything else, which isn't its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        for at, argument in enumerate(args[:own]):
            if argument == "--synthetic-data" and not "".join(args[at + 1 : own][:1]).isdigit():
                args = [*args[:at], f"--synthetic-data={COUNT}", *args[at + 1 :]]
        return super().parse_args(ctx, args)


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
        inputs, options, output, in_place, entries, force, vendored, strict=strict, as_json=as_json
    )
    ctx.exit(conversion.run(request))


@main.command(help=_VERIFY_HELP, cls=_Verify)
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path))
@click.argument("arguments", metavar="[-- ARGS]", nargs=-1)
@click.option("--converted", metavar="FILE", type=click.Path(path_type=Path), help="The converted script, if there is.")
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Replicas, and ranks.")
@click.option("--steps", type=click.IntRange(1), help="End both after so many optimizer steps.")
@click.option("--seed", type=int, default=0, show_default=True, help="For scripts that set none themselves.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=1e-6,
    show_default=True,
    help="The largest relative difference that counts as agreement.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--allow-ddp", is_flag=True, help="As in convert.")
@click.option("--repeats", type=click.IntRange(2), help="Seeds, where augmentation rules out exactness.  [default: 3]")
@click.option(
    "--synthetic-data",
    metavar="[N]",
    type=click.IntRange(1),
    help=f"Made-up samples in torchvision's data sets: N (default {COUNT}) to train on, a quarter to test.",
)
@click.option("--timeout", type=click.FloatRange(1), default=3600.0, show_default=True, help="Seconds for each run.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON on standard output.")
@click.option(
    "--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw losses and difference (.png, .svg)."
)
@click.pass_context
def verify(
    ctx: click.Context,
    script: Path,
    arguments: Sequence[str],
    converted: Path | None,
    nproc: int,
    steps: int | None,
    seed: int,
    tolerance: float,
    device: str,
    allow_ddp: bool,
    repeats: int | None,
    synthetic_data: int | None,
    timeout: float,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Verifies one conversion."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise BadInput("verify", what="torch is not installed", todo='pip install "dp2ddp[runtime]"')
    from dp2ddp.verify import plot as drawing
    from dp2ddp.verify.command import verifying
    from dp2ddp.verify.run import runs
    from dp2ddp.verify.verdict import Request

    if plot is not None:
        drawing.check(plot)
    options = runs.Options(nproc, steps, cuda=device == "cuda", seed=seed, synthetic=synthetic_data, timeout=timeout)
    request = Request(script, arguments, converted, options, tolerance, repeats, allow_ddp=allow_ddp)
    with verifying(request) as verdict:
        _show_verdict(verdict, script.name, as_json)
        if plot is not None and verdict.comparison is not None:
            drawing.draw(verdict.comparison, plot, script.name)
    ctx.exit(verdict.exit_code)


@main.command()
@click.argument("rule_id", metavar="[RULE]", required=False)
def rules(rule_id: str | None) -> None:
    """List the rules; with RULE, show that one with its code before and after."""
    from dp2ddp.convert import report
    from dp2ddp.rules import all_rules, rule

    if rule_id is None:
        report.show_lines(report.rules_lines(all_rules()), to_error=False)
        return
    found = rule(rule_id)
    if found is None:
        raise BadInput("rules", what=f"no rule {rule_id!r}", todo="`dp2ddp rules` lists them")
    report.show_lines(report.rule_lines(found), to_error=False)


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


def _show_verdict(verdict: Verdict, name: str, as_json: bool) -> None:
    import json

    from rich.console import Console

    from dp2ddp.verify import report

    if as_json:
        click.echo(json.dumps(report.as_data(verdict, name), indent=2))
    if not as_json or verdict.failure is not None:
        report.show(Console(highlight=False), Console(stderr=True, highlight=False), verdict, name)
