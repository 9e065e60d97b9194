"""Run a script as `__main__` and record it: `python -m dp2ddp.verify.run.record --out DIR [options] -- script.py args`.

The recording (see `recorder`) goes to `DIR/rank<r>`, r being `RANK` under torchrun and 0 otherwise. The script is run
as Python runs it: same `sys.argv`, `sys.path[0]`, working directory, output and exit code.
"""

from __future__ import annotations

import argparse
import builtins
import io
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import dp2ddp_runtime
import torch
from dp2ddp_runtime.base import location, world
from dp2ddp_runtime.model import wrapped
from dp2ddp_runtime.model.wrapped import WrappedModel
from dp2ddp_runtime.rank_zero import callsites
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dp2ddp.verify.emulate import cuda, cuda_module, draws, foreign, mixed, pretended, synthetic
from dp2ddp.verify.emulate.stand_in import emulate, seed
from dp2ddp.verify.run import scratch, terminal
from dp2ddp.verify.run.gate import Gate
from dp2ddp.verify.run.recorder import Recorder, StepsDone
from dp2ddp.verify.start import family


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Raises whatever the script raises."""
    options = _parser().parse_args(argv)
    if options.parent is not None:
        family.end_with(options.parent)
    _prepare(options)
    script = os.path.abspath(options.script)
    sys.path[0] = os.path.dirname(script)
    # Relative, as a user types it: what a script prints of it must not tell where this side runs.
    name = os.path.join(os.path.relpath(os.path.realpath(sys.path[0])), os.path.basename(script))
    sys.argv = [os.path.normpath(name), *options.arguments]
    callsites.aside.append(str(Path(__file__).parents[2]))  # what is recorded is each rank's own
    gate = None if options.gate is None else Gate(options.gate)
    try:
        with (
            Recorder(
                options.out / f"rank{_rank()}", options.steps, gate, options.original, options.perturbed
            ) as recorder,
            ExitStack() as modes,
        ):
            if options.emulate is not None:
                emulate(options.emulate, recorder.splits, pretended=options.pretended is not None)
            else:
                if options.foreign:
                    recorder.watch_wrapped(DistributedDataParallel, "wrapped", _rank())
                else:
                    recorder.watch_wrapped(WrappedModel, "wrapped")
                    recorder.watch_replicas(wrapped, _rank())
                recorder.watch_wrapped(nn.DataParallel, "wrapped" if options.original else "left")
                recorder.watch_batch_norm(dp2ddp_runtime)
            if options.modules is not None:
                first = 0 if options.original else _rank()
                modes.enter_context(recorder.watching_modules(options.modules, first))
            if options.foreign:
                foreign.install(_rank(), options.cpu is not None, recorder.draws)
            if _rank():
                recorder.watch_files()
            if options.synthetic is not None:
                synthetic.install(synthetic.Maker(options.synthetic, options.synthetic_folder, recorder.made_up))
            if options.cpu is not None or options.float64:
                modes.enter_context(cuda.OnCPU(options.cpu is not None, options.float64))
            _run(script)
    except StepsDone:
        sys.exit(0)


def _run(script: str) -> None:
    """Run the file at the absolute path `script` as `__main__`."""
    main = ModuleType("__main__")
    vars(main).update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, vars(main))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dp2ddp.verify.run.record", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--emulate", type=int, metavar="N", help="nn.DataParallel gets N replicas, one after the other")
    parser.add_argument("--steps", type=int, metavar="K", help="end the script after K optimizer steps")
    parser.add_argument("--float64", action="store_true", help="compute in float64")
    parser.add_argument("--cpu", type=int, metavar="N", help="the CPU stands in for N CUDA devices")
    parser.add_argument("--pretended", type=int, metavar="N", help="have N pretend CUDA devices")
    parser.add_argument("--seed", type=int, metavar="S", help="seed the generators before the script starts")
    parser.add_argument("--synthetic", type=int, metavar="N", help="torchvision's data sets get N made-up samples")
    parser.add_argument("--synthetic-folder", type=Path, metavar="DIR", help="where made-up image files go")
    parser.add_argument("--gate", type=Path, metavar="FILE", help="wait there where the comparison is behind")
    parser.add_argument("--original", action="store_true", help="with nn.DataParallel; note which of its lines print")
    parser.add_argument("--modules", type=int, metavar="K", help="record what modules give out in step K (from 1)")
    parser.add_argument("--perturbed", action="store_true", help="begin with parameters a unit of rounding elsewhere")
    parser.add_argument("--foreign", action="store_true", help="a script with DistributedDataParallel of its own")
    parser.add_argument(
        "--draws-everywhere", action="store_true", help="samples draw by their index, without workers, too"
    )
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process, the parent, does")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _prepare(options: argparse.Namespace) -> None:
    _show_terminal()
    location.leave_out(os.path.dirname(os.path.dirname(__file__)))
    scratch.protect(options.out)  # the working directory, and the script's own where that is another one
    if options.pretended is not None:
        pretended.install(options.pretended)
    if options.cpu is not None:
        cuda_module.without_cuda(options.cpu)
        mixed.without_cuda()
        _show_cuda()
    if options.float64:
        torch.set_default_dtype(torch.float64)
    if options.seed is not None:
        seed(options.seed + _rank())  # torchrun's ranks differ, too, in scripts that don't seed
        draws.install(options.seed, everywhere=options.foreign or options.draws_everywhere)


def _show_terminal() -> None:
    """Standard input is a terminal, as it is to whom starts the script by hand; nobody types there."""
    opened = terminal.open_silent(lines=24, columns=80)
    if opened is not None:
        os.dup2(opened[1], 0)


def _rank() -> int:
    return int(world.environment().get("RANK", "0"))


def _show_cuda() -> None:
    """What a converted script asks the runtime for is a CUDA device, as `torch.device("cuda")` is to the original; and
    the runtime puts its model there, as the original's `.cuda()` does, which a conversion may leave out."""
    show: Any = lambda otherwise=None: torch.device("cuda", 0)  # noqa: E731 -- a rank sees one device
    dp2ddp_runtime.device = show
    wrap = dp2ddp_runtime.wrap_model

    def wrap_model(*args: Any, **kwargs: Any) -> Any:
        cuda.put_to_use()
        return wrap(*args, **kwargs)

    dp2ddp_runtime.wrap_model = wrap_model


if __name__ == "__main__":
    main()
