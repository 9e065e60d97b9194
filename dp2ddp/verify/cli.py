"""The command `dp2ddp verify` and its options, nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dp2ddp.command import terminal
from dp2ddp.command.options import PATH, SPEECH, Command, flag
from dp2ddp.errors import BadInput
from dp2ddp.verify import COUNT

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict

AUTO = "auto"
_GIVEN = "dp2ddp.verify.given"  # the arguments as they were given
_VERIFY_HELP = """Run SCRIPT (with nn.DataParallel) and its conversion side by side, and show whether they train the
same model. ARGS, after --, are the script's own.

Both run in scratch copies of the current directory, on the CPU, where nn.DataParallel is emulated; with --device cuda
on GPUs, or on pretend ones. Compared are the parameters after every optimizer step, the losses, the printed lines, the
files written and the exit codes. What samples draw in workers depends on the sample on both sides, so augmentation is
no obstacle. Exit codes: 0 shown to agree, 1 shown to differ, 2 could not run, 3 a mistake in dp2ddp, 4 neither is
shown.

\b
Examples:
  dp2ddp verify train.py --nproc 2 -- --epochs 1
  dp2ddp verify train.py --converted train_ddp.py --html report.html
  dp2ddp verify cifar.py --synthetic-data --steps 10 -- --batch-size 32
"""


class _Verify(Command):
    """A command whose `--synthetic-data` may be followed by a number, or by anything else, which isn't its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = ctx.meta[_GIVEN] = list(args)
        own = args.index("--") if "--" in args else len(args)
        for at, argument in enumerate(args[:own]):
            if argument == "--synthetic-data" and not "".join(args[at + 1 : own][:1]).isdigit():
                args = [*args[:at], f"--synthetic-data={COUNT}", *args[at + 1 :]]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if own < len(given):
                raise
            ours, theirs = self._sorted(given)
            command = shlex.join([*ctx.command_path.split(), *ours, "--", *theirs])
            what = error.format_message()
            what = what if what.endswith((".", "?")) else f"{what}."
            raise click.UsageError(f"{what} SCRIPT's own go after --: {command}", ctx) from error

    def _sorted(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """The arguments that are this command's, the script among them, and the others, which must be the script's."""
        options = {name: param for param in self.params if isinstance(param, click.Option) for name in param.opts}
        ours: list[str] = []
        theirs: list[str] = []
        rest, scripts = list(args), 0
        while rest:
            argument = rest.pop(0)
            option = options.get(argument.partition("=")[0])
            if option is not None:
                ours.append(argument)
                takes = rest and not option.is_flag and "=" not in argument
                if takes and (option.name != "synthetic_data" or rest[0].isdigit()):
                    ours.append(rest.pop(0))
            elif not argument.startswith("-") and not scripts and not theirs:
                ours.append(argument)
                scripts += 1
            else:
                theirs.append(argument)
        return ours, theirs


def _steps(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value not in (None, AUTO) and not (value.isdecimal() and int(value) > 0):
        raise click.BadParameter(f"{value!r} is neither a number of steps nor {AUTO}", ctx, param)
    return value


@click.command(
    help=_VERIFY_HELP, short_help="Run a script and its conversion, and compare.", cls=_Verify, files="script"
)
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path))
@click.argument("arguments", metavar="[-- ARGS]", nargs=-1)
@click.option("--converted", metavar="FILE", type=click.Path(path_type=Path), help="The converted script, if there is.")
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Replicas, and ranks.")
@click.option(
    "--steps",
    metavar="N|auto",
    callback=_steps,
    help="End both after so many optimizer steps; auto: once they differ, or were seen to agree long enough.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For scripts that set none themselves.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=1e-6,
    show_default=True,
    help="The largest relative difference that counts as agreement.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: the GPUs; where there are fewer than replicas, pretend ones, on which a wrong device is an error.",
)
@click.option("--allow-ddp", is_flag=True, help="As in convert.")
@click.option(
    "--synthetic-data",
    metavar="[N]",
    type=click.IntRange(1),
    help=f"Made-up samples in torchvision's data sets: N (default {COUNT}) to train on, a quarter to test.",
)
@click.option("--timeout", type=click.FloatRange(1), default=3600.0, show_default=True, help="Seconds for each run.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The form of the verdict, on standard output.",
)
@click.option(
    "--html", metavar="FILE", type=PATH, help="Write a page to look at: the verdict, curves, what differs and where."
)
@flag("force", help="Overwrite FILE even if it is no page of dp2ddp.")
@SPEECH
@click.pass_context
def verify(
    ctx: click.Context,
    script: Path,
    arguments: Sequence[str],
    converted: Path | None,
    nproc: int,
    steps: str | None,
    seed: int,
    tolerance: float,
    device: str,
    allow_ddp: bool,
    synthetic_data: int | None,
    timeout: float,
    form: str,
    html: str | None,
    force: bool,
) -> None:
    """Verifies one conversion."""
    from importlib.util import find_spec

    from dp2ddp.verify.start.signals import ending_orderly

    ctx.with_resource(ending_orderly())

    if find_spec("torch") is None:
        raise BadInput("verify", what="torch is not installed", todo="pip install torch")
    from dp2ddp import page
    from dp2ddp.verify.command import verifying
    from dp2ddp.verify.progress import showing
    from dp2ddp.verify.request import Request
    from dp2ddp.verify.run.options import Options

    if html is not None:
        page.check_target(html, force=force)
    auto, cuda = steps == AUTO, device == "cuda"
    number = None if steps is None or auto else int(steps)
    options = Options(nproc, number, cuda=cuda, seed=seed, synthetic=synthetic_data, timeout=timeout, auto=auto)
    request = Request(script, arguments, converted, options, tolerance, allow_ddp=allow_ddp)
    quiet = terminal.is_quiet()
    with ExitStack() as stack:
        with showing(quiet, number) as show:
            verdict = stack.enter_context(verifying(request, show))
        _show_verdict(verdict, script.name, as_json=form == "json", quiet=quiet)
        if html is not None:
            from dp2ddp.verify.page import written

            written(verdict, script.name, shlex.join(["dp2ddp", "verify", *ctx.meta[_GIVEN]]), html)
    ctx.exit(verdict.exit_code)


def _show_verdict(verdict: Verdict, name: str, *, as_json: bool, quiet: bool) -> None:
    import json

    from dp2ddp.verify import report

    if as_json:
        click.echo(json.dumps(report.as_data(verdict, name), indent=2))
    if not as_json or verdict.failure is not None:
        consoles = terminal.console(to_error=False), terminal.console(to_error=True)
        report.show(*consoles, verdict, name, quiet, terminal.is_verbose())
