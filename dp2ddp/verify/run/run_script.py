"""Run a script as `__main__` and record it: `python -m dp2ddp.verify.run.run_script PARENT TASK` (an `options.Task`).

It ends when the process PARENT does. The recording (see `step_hooks`) goes to `rank<r>` in the run's folder. The script
is run as Python runs it: same `sys.argv`, `sys.path[0]`, working directory, output and exit code.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import logging
import os
import struct
import sys
import termios
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import dp2ddp_runtime
import torch
from dp2ddp_runtime import WrappedModel, place
from torch.nn.parallel import DistributedDataParallel

from dp2ddp.verify.emulate import clock, cuda, draws, foreign, stand_in, synthetic
from dp2ddp.verify.run import scratch
from dp2ddp.verify.run.run_options import Task
from dp2ddp.verify.run.step_hooks import Recorder
from dp2ddp.verify.start import cleanup

_LINES, _COLUMNS = 24, 80


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Raises whatever the script raises."""
    parent, told = sys.argv[1:] if argv is None else argv
    cleanup.end_with(int(parent))
    task = Task.of_text(told)
    folder, options = Path(task.folder), task.options
    _prepare(task, folder)
    script = os.path.abspath(task.script)
    sys.path[0] = os.path.dirname(script)
    # Relative, as a user types it: what a script prints of it must not tell where this side runs.
    name = os.path.join(os.path.relpath(os.path.realpath(sys.path[0])), os.path.basename(script))
    sys.argv = [os.path.normpath(name), *task.arguments]
    with Recorder(folder / f"rank{task.rank}", options.steps) as recorder, ExitStack() as modes:
        # The working directory, and the script's own where that is another one.
        scratch.protect(folder, *([recorder.wrote] if task.rank else []))
        _watch(task, recorder)
        if options.synthetic is not None:
            synthetic.install(options.synthetic, partial(recorder.note, "synthetic"))
        if not options.cuda or options.float64:
            modes.enter_context(cuda.OnCPU(not options.cuda, options.float64))
        _run(script)


def _prepare(task: Task, folder: Path) -> None:
    options = task.options
    _show_terminal()
    place.leave_out(os.path.dirname(os.path.dirname(__file__)))
    if not options.cuda:
        cuda.without_cuda(max(options.replicas, 2))
        # What a converted script asks the runtime for is CUDA's, as the original's; a rank sees one device.
        vars(dp2ddp_runtime)["device"] = lambda otherwise=None: torch.device("cuda", 0)
    logging.setLogRecordFactory(_Record)
    if options.float64:
        torch.set_default_dtype(torch.float64)
    # For scripts that don't seed; torchrun's ranks differ, too. Large, as torch's own is: scripts divide it by 2**32.
    dp2ddp_runtime.seed_everything((1 << 40) + task.rank)
    draws.install(everywhere=options.foreign)
    with suppress(FileExistsError), open(folder.parent / "begun", "x"):
        pass  # the first of the runs that are compared
    begun = (folder.parent / "begun").stat().st_mtime_ns
    clock.install(os.path.join(folder, ""), begun, behind=task.rank)
    if task.rank and not task.original and not options.foreign:  # a rank that a wrap starts prints nowhere
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)


def _watch(task: Task, recorder: Recorder) -> None:
    """Have calls of the script's wrapped models seen, but for those on real GPUs; emulate `nn.DataParallel`."""
    options = task.options
    if task.original:
        if not options.cuda:
            stand_in.emulate(options.replicas, recorder, one_gpu=options.one_gpu)
    elif options.foreign and options.replicas > 1:
        recorder.watch_replicas(DistributedDataParallel, task.rank)
        foreign.install(task.rank, not options.cuda, partial(recorder.note, "drew"))
    else:
        recorder.watch_replicas(WrappedModel, task.rank)


def _run(script: str) -> None:
    """Run the file at the absolute path `script` as `__main__`."""
    main = ModuleType("__main__")
    vars(main).update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, vars(main))


class _Record(logging.LogRecord):
    """What a script logs has line 0 everywhere: a conversion moves lines."""

    lineno = property(lambda self: 0, lambda self, line: vars(self).update(lineno=0))


def _show_terminal() -> None:
    """Standard input is a terminal in which nobody types, of which every read finds the end of the file.

    Scripts ask it for the width of their progress bars (`stty size`), and end with an error where it is no terminal.
    Ranks other than 0 can't have the real one: they would take away what is typed for rank 0.
    """
    try:
        _, terminal = os.openpty()  # the other end stays open as long as this process
    except OSError:  # the system has none to give
        return
    mode = termios.tcgetattr(terminal)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0  # don't wait: nothing there is the end
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    os.dup2(terminal, 0)


if __name__ == "__main__":
    main()
