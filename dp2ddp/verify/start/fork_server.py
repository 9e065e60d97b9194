"""The process that starts a comparison's runs: `python -m dp2ddp.verify.start.fork_server FOLDER MODULE...`.

Importing torch is most of a short run, so it does that once, and forks the runs (on Linux; elsewhere each is a Python
of its own). It takes orders as lines of JSON on standard input. When that ends, as the command has ended in whatever
way, it kills all that came of it, removes FOLDER and ends. It is in a session of its own, so that signals for the
command's group (Ctrl-C, `timeout`) don't reach it. If it is killed itself, the runs end, too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing.process
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from dp2ddp.verify.start import cleanup

RUN_SCRIPT = "dp2ddp.verify.run.run_script"
FORKS = sys.platform == "linux"
_ALL_IMPORT = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", RUN_SCRIPT)


def serve(orders: IO[str], answers: IO[str]) -> list[str] | None:
    """Answers orders, lines of JSON, until there are no more.

    Returns None in the server when all is over, and in each forked process the arguments of `run_script`.
    """
    processes: set[int] = set()
    for line in orders:
        order = json.loads(line)
        if "start" in order:
            arguments, cwd, env, out, err, fork = order["start"]
            given = [str(os.getpid()), *arguments]
            answer: int | None = os.fork()
            if not answer:
                for pipe in (orders, answers):
                    pipe.close()
                _become(cwd, env, out, err)
                if fork and FORKS:
                    return given
                os.execve(sys.executable, [sys.executable, "-m", RUN_SCRIPT, *given], env)
            processes.add(answer)
        else:
            ended, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
            processes.discard(ended)  # another process may have this id from now on
        with suppress(BrokenPipeError):  # the end of the orders follows
            print(json.dumps(answer), file=answers, flush=True)
    for pid in processes:
        cleanup.end_group(pid)
    cleanup.end_children()
    return None


def _become(cwd: str, env: Mapping[str, str], out: str, err: str) -> None:
    """In a forked process: be as one that was started in `cwd` with `env`."""
    # What was imported is nobody's garbage: to search it would only copy what all share. As Python's documentation
    # recommends for processes that are forked (https://docs.python.org/3/library/gc.html#gc.freeze).
    gc.freeze()
    gc.enable()
    os.setsid()
    for number, name in ((1, out), (2, err)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    own = [os.path.abspath(entry) for entry in _entries(os.environ)]
    rest = [entry for entry in sys.path[1:] if entry not in own]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:] = [cwd, *dict.fromkeys([*map(os.path.abspath, _entries(env)), *rest])]
    vars(multiprocessing.process)["ORIGINAL_DIR"] = cwd  # where processes that the script spawns go first


def _entries(env: Mapping[str, str]) -> list[str]:
    return [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _run_to_the_end(given: list[str]) -> NoReturn:
    """Run the script, and end as Python does (open files are written), but take nothing apart that is shared."""
    from dp2ddp.verify.run import run_script

    shared, code = set(map(id, sys.modules.values())), 0
    try:
        run_script.main(given)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # threads that aren't daemons end first
    atexit._run_exitfuncs()
    threading.excepthook = lambda _: None  # of daemons, which Python would have stopped by now
    for module in [each for each in sys.modules.values() if id(each) not in shared]:
        vars(module).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):  # the script may have put its own there
        with suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    os._exit(code & 0xFF)


def main() -> None:
    """The command line."""
    gc.disable()  # nothing but imports happens here
    # What is forked finds its standard input and output as if it had been started with them.
    orders, answers = (os.fdopen(os.dup(fd), mode, encoding="utf-8") for fd, mode in ((0, "r"), (1, "w")))
    silence = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(silence, fd)
    os.close(silence)
    cleanup.adopt_orphans()
    folder, *modules = sys.argv[1:]
    for name in (*_ALL_IMPORT, *modules) if FORKS else ():
        with suppress(Exception):  # it fails again in the script, for all to see
            importlib.import_module(name)
    given = serve(orders, answers)
    if given is not None:
        _run_to_the_end(given)
    if folder:
        cleanup.remove(Path(folder))
    os._exit(0)  # taking torch apart takes a second


if __name__ == "__main__":
    main()
