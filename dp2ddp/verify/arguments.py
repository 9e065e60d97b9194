"""The command `dp2ddp verify` and its options, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from dp2ddp.command import progress, terminal
from dp2ddp.command.options import SPEECH, Command
from dp2ddp.errors import BadInput
from dp2ddp.verify import COUNT

_VERIFY_HELP = """Run SCRIPT (with nn.DataParallel) and its conversion side by side, and show whether they train the
same model. ARGS, after --, are the script's own.

Both run in scratch copies of the current directory, on the CPU, where nn.DataParallel is emulated; with --device cuda
on GPUs. Compared are the parameters after every optimizer step, the losses, the printed lines, the
files written and the exit codes. What samples draw in workers depends on the sample on both sides, so augmentation is
no obstacle. Exit codes: 0 shown to agree, 1 shown to differ, 2 could not run, 3 a mistake in dp2ddp, 4 neither is
shown.

\b
Examples:
  dp2ddp verify train.py --nproc 2 -- --epochs 1
  dp2ddp verify train.py --converted train_ddp.py --steps 50
  dp2ddp verify cifar.py --synthetic-data --steps 10 -- --batch-size 32
"""


class _Verify(Command):
    """A command that says where an option goes that it doesn't have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = error.format_message()
            what = what if what.endswith((".", "?")) else f"{what}."
            raise click.UsageError(
                f"{what} SCRIPT's own go after --: {ctx.command_path} SCRIPT [OPTIONS] -- ARGS", ctx
            ) from error


def _one_of(*values: str) -> dict[str, Any]:
    """An option that takes one of some values, by default the first."""
    return {"type": click.Choice(values), "default": values[0], "show_default": True}


@click.command(help=_VERIFY_HELP, short_help="Run a script and its conversion, and compare.", cls=_Verify)
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path))
@click.argument("arguments", metavar="[-- ARGS]", nargs=-1)
@click.option("--converted", metavar="FILE", type=click.Path(path_type=Path), help="The converted script, if there is.")
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Replicas, and ranks.")
@click.option("--steps", type=click.IntRange(1), help="End both after so many optimizer steps.")
@click.option("--device", **_one_of("cpu", "cuda"), help="cuda: this machine's GPUs, as many as --nproc says.")
@click.option("--allow-ddp", is_flag=True, help="As in convert.")
@click.option(
    "--synthetic-data",
    metavar="[N]",
    type=click.IntRange(1),
    is_flag=False,
    flag_value=COUNT,
    help=f"Made-up samples in torchvision's data sets: N (default {COUNT}) to train on, a quarter to test.",
)
@click.option("--timeout", type=click.FloatRange(1), default=3600.0, show_default=True, help="Seconds for each run.")
@click.option("--format", "form", **_one_of("text", "json"), help="The form of the verdict, on standard output.")
@SPEECH
@click.pass_context
def verify(
    ctx: click.Context,
    script: Path,
    arguments: Sequence[str],
    converted: Path | None,
    nproc: int,
    steps: int | None,
    device: str,
    allow_ddp: bool,
    synthetic_data: int | None,
    timeout: float,
    form: str,
) -> None:
    """Verifies one conversion."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise BadInput("verify", what="torch is not installed", todo="pip install torch")
    from dp2ddp.verify.command import verifying
    from dp2ddp.verify.run.run_options import Options

    options = Options(nproc, steps, cuda=device == "cuda", synthetic=synthetic_data, timeout=timeout)
    quiet = terminal.is_quiet()
    with ExitStack() as stack:
        with progress.shown("starting both scripts", wanted=not quiet):
            verdict = stack.enter_context(verifying(script, arguments, converted, options, allow_ddp=allow_ddp))
        from dp2ddp.verify import report

        if form == "json":
            click.echo(report.as_json(verdict, script.name))
        if form == "text" or verdict.failure is not None:
            report.show(verdict, script.name, quiet=quiet)
    ctx.exit(verdict.exit_code)
