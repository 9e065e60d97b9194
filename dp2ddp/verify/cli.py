"""The command `dp2ddp verify` and its options, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dp2ddp.errors import BadInput
from dp2ddp.verify import COUNT

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict

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


class _Verify(click.Command):
    """A command whose `--synthetic-data` may be followed by a number, or by anything else, which isn't its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        for at, argument in enumerate(args[:own]):
            if argument == "--synthetic-data" and not "".join(args[at + 1 : own][:1]).isdigit():
                args = [*args[:at], f"--synthetic-data={COUNT}", *args[at + 1 :]]
        return super().parse_args(ctx, args)


@click.command(help=_VERIFY_HELP, cls=_Verify)
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
        raise BadInput("verify", what="torch is not installed", todo='pip install "dp2ddp[verify]"')
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


def _show_verdict(verdict: Verdict, name: str, as_json: bool) -> None:
    import json

    from rich.console import Console

    from dp2ddp.verify import report

    if as_json:
        click.echo(json.dumps(report.as_data(verdict, name), indent=2))
    if not as_json or verdict.failure is not None:
        report.show(Console(highlight=False), Console(stderr=True, highlight=False), verdict, name)
