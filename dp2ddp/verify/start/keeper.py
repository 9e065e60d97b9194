"""The process that starts a comparison's runs: `python -m dp2ddp.verify.start.keeper [--folder DIR]`.

Importing torch is most of a short run, so it does that once, and forks the runs (on Linux; elsewhere each is a Python
of its own). It takes orders as lines of JSON on standard input. When that ends (the command has ended, by a signal or
by itself) it kills all that it started, and what these started, removes DIR and ends. It is in a session of its own,
so that signals for the command's group (Ctrl-C, `timeout`) don't reach it. If it is killed itself, the runs end, too.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import multiprocessing.process
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from dp2ddp.verify.start import ending, family, temporary

RECORD = "dp2ddp.verify.run.record"
FORKS = sys.platform == "linux"
_EVERY = 0.2  # seconds


class Keeper:
    """Answers orders until there are no more.

    Args:
        orders, answers: lines of JSON.
        folder: what is removed at the end.
    """

    def __init__(self, orders: IO[str], answers: IO[str], folder: Path | None) -> None:
        self._orders = orders
        self._answers = answers
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes] | None] = {}
        self._codes: dict[int, int] = {}

    def serve(self) -> list[str] | None:
        """Returns in the keeper at the end, and in each forked process with the arguments of `record`."""
        for line in self._orders:
            order = json.loads(line)
            if "import" in order:
                self._import(order["import"])
                continue
            if "start" in order:
                arguments = self._start(**order["start"])
                if arguments is not None:
                    return arguments
            elif "end" in order:
                family.end_group(order["end"])
            elif "poll" in order:
                self._answer(self._poll(order["poll"]))
        self._end()
        return None

    def _answer(self, answer: Any) -> None:
        with suppress(BrokenPipeError):  # the end of the orders follows
            print(json.dumps(answer), file=self._answers, flush=True)

    def _import(self, names: Sequence[str]) -> None:
        """Import what all runs will; what fails to be imported fails again in the script, for all to see."""
        with self._watched():
            for name in names if FORKS else ():
                with suppress(Exception):
                    importlib.import_module(name)

    def _start(
        self, arguments: Sequence[str], cwd: str, env: Mapping[str, str], out: str, err: str, fork: bool
    ) -> list[str] | None:
        given = ["--parent", str(os.getpid()), *arguments]
        if not (fork and FORKS):
            with open(out, "wb") as stdout, open(err, "wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, "-m", RECORD, *given],
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            self._processes[process.pid] = process
            self._answer(process.pid)
            return None
        pid = os.fork()
        if pid:
            self._processes[pid] = None
            self._answer(pid)
            return None
        self._become(cwd, env, out, err)
        return given

    def _become(self, cwd: str, env: Mapping[str, str], out: str, err: str) -> None:
        """In a forked process: be as one that was started in `cwd` with `env`."""
        # What was imported is nobody's garbage: to search it would only copy what all share. As Python's documentation
        # recommends for processes that are forked (https://docs.python.org/3/library/gc.html#gc.freeze).
        gc.freeze()
        gc.enable()
        os.setsid()
        for pipe in (self._orders, self._answers):
            pipe.close()
        for number, name in ((1, out), (2, err)):
            opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        own = [os.path.abspath(entry) for entry in _entries(os.environ)]
        rest = [entry for entry in sys.path[1:] if entry not in own]
        given = [os.path.abspath(os.path.join(cwd, entry)) for entry in _entries(env)]
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.path[:] = [cwd, *dict.fromkeys([*given, *rest])]
        # Processes that the script spawns go there first.
        vars(multiprocessing.process)["ORIGINAL_DIR"] = cwd

    def _poll(self, pid: int) -> int | None:
        if pid not in self._codes:
            process = self._processes[pid]
            if process is not None:
                code = process.poll()
            else:
                ended, status = os.waitpid(pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if ended else None
            if code is None:
                return None
            self._codes[pid] = code
        return self._codes[pid]

    def _end(self) -> None:
        for pid in self._processes.keys() - self._codes.keys():
            family.end_group(pid)
        family.end_children()
        if self._folder is not None:
            temporary.remove(self._folder)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Importing takes seconds: end in the middle of it if nobody waits for it any more."""
        done = threading.Event()

        def watch() -> None:
            poll = select.poll()
            poll.register(self._orders.fileno(), 0)
            while not done.is_set():
                if poll.poll(1000 * _EVERY):
                    self._end()
                    os._exit(0)

        if not hasattr(select, "poll"):  # Windows
            yield
            return
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        yield
        done.set()
        watcher.join()  # a process is forked with one thread only


def _entries(env: Mapping[str, str]) -> list[str]:
    return [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]


def main() -> list[str] | None:
    """The command line. Returns in each forked process with the arguments of `record`."""
    parser = argparse.ArgumentParser(prog="python -m dp2ddp.verify.start.keeper", description=__doc__)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="what to remove in the end")
    folder = parser.parse_args().folder
    gc.disable()  # nothing but imports happens here
    # What is forked finds its standard input and output as if it had been started with them.
    orders, answers = (os.fdopen(os.dup(fd), mode, encoding="utf-8") for fd, mode in ((0, "r"), (1, "w")))
    silence = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(silence, fd)
    os.close(silence)
    family.adopt_orphans()
    return Keeper(orders, answers, folder).serve()


if __name__ == "__main__":
    _arguments = main()
    if _arguments is None:
        os._exit(0)  # all is done, and taking torch apart takes a second
    from dp2ddp.verify.run import record

    ending.run_to_the_end(partial(record.main, _arguments))
