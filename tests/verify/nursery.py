"""Processes under `record`, forked from one that has imported torch already: importing is most of a short run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

from dp2ddp.verify.run import runs

_PARENT = """
import json, os, sys
import torch, torch._dynamo, torch.distributed, torch.nn.parallel
import torchvision.datasets, torchvision.transforms, torchvision.utils
from dp2ddp.verify.run import record

def run(told):
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    for number, name in ((1, told["out"]), (2, told["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    try:
        record.main(told["arguments"])
        return 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1

children = {}
for line in sys.stdin:
    told = json.loads(line)
    if "wait" in told:
        pid, status = os.waitpid(told["wait"], 0 if told["block"] else os.WNOHANG)
        print(os.waitstatus_to_exitcode(status) if pid else "null", flush=True)
        continue
    child = os.fork()
    if not child:
        code = run(told)
        import atexit
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
"""


class Nursery:
    """Stands in for `subprocess.Popen` in `runs`."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": runs._python_path(), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _PARENT]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._parent = subprocess.Popen(command, env=environment, text=True, **pipes)

    def ask(self, question: Mapping[str, Any]) -> Any:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(question) + "\n")
        self._parent.stdin.flush()
        return json.loads(self._parent.stdout.readline())

    def close(self) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(20)
        self._parent.stdout.close()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, `runs` forks instead of starting Python anew."""

        def start(command: Sequence[str], **options: Any) -> Child:
            return Child(self, command, **options)

        names = {"Popen": start, "DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
        with mock.patch.object(runs, "subprocess", SimpleNamespace(**names)):
            yield


class Child:
    """A forked run, with what `runs` needs of a `Popen`."""

    def __init__(
        self,
        nursery: Nursery,
        command: Sequence[str],
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        stdin: Any,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        self.args = command
        self._nursery = nursery
        self._code: int | None = None
        outputs = {"out": stdout.name, "err": stderr.name}
        question = {"arguments": list(command[3:]), "cwd": str(cwd), "env": dict(env), **outputs}
        self._pid = int(nursery.ask(question))

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._nursery.ask({"wait": self._pid, "block": False})
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = int(self._nursery.ask({"wait": self._pid, "block": True}))
        return self._code

    def kill(self) -> None:
        os.kill(self._pid, 9)
