"""Processes forked from one that has imported torch already: importing is most of a short run.

`Parent` starts such a process; run as a script, this file is that process. A child does what the same process would do
that was started by itself, but for the interpreter's own start and end: it ends with `os._exit`, after `atexit`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.util
import json
import math
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Whether a loader's workers can be forked from a forked process: on Python 3.9 they stay in `PyOS_AfterFork_Child` now
#: and then (https://github.com/python/cpython/issues/112275).
WORKERS_OF_FORKS = sys.version_info >= (3, 11)


class Parent:
    """A process that has imported `modules`, and waits to be asked for children.

    `variables` is its environment; torch counts its threads by that, once, for all children.
    """

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, env=variables, pass_fds=[theirs.fileno()])
        theirs.close()

    def fork(
        self,
        target: str,
        *arguments: Any,
        variables: Mapping[str, str],
        folder: str,
        streams: Sequence[int] = (),
        descriptors: Sequence[int] = (),
        network: str | None = None,
    ) -> Fork:
        """Start a child that calls `target` ("module:function") with `arguments`, which go as JSON, and `descriptors`.

        The child's environment is `variables`, its working directory `folder`; `streams` are its standard input, output
        and error, those of this process's if there are none; `network` is the name of a namespace that it goes into, as
        by `ip netns exec`. It exits as a script would: with 0, with what `sys.exit` was given, or with 1 and a
        traceback.
        """
        told: dict[str, Any] = {"target": target, "arguments": arguments, "variables": dict(variables)}
        told |= {"folder": folder, "network": network}
        return Fork(self, self.ask({**told, "streams": len(streams)}, [*streams, *descriptors]))

    def ask(self, question: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """One question, one answer; EOFError if the process has died."""
        _send(self._channel, question, descriptors)
        return _receive(self._channel)[0]

    def close(self) -> None:
        """End the process; its children live on."""
        self._channel.shutdown(socket.SHUT_RDWR)  # also where a loader's worker has a copy of it
        self._channel.close()
        self._process.wait(20)


class Fork:
    """A child of a `Parent`, with what one needs of a `subprocess.Popen`."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self._parent = parent
        self._code: int | None = None
        self.pid = pid
        self.args: Sequence[str] = ()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._ask(block=False)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self._ask(block=True)
        assert code is not None
        return code

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:  # the parent hasn't waited for it, so its number is no other process's
            os.kill(self.pid, number)

    def _ask(self, block: bool) -> int | None:
        if self._code is None:
            self._code = self._parent.ask({"wait": self.pid, "block": block})
        return self._code


def run(*command: str) -> None:
    """In a child: what Python does with these arguments, a script's path or `-m` and a module, and the script's own."""
    while command[0].startswith("-") and command[0] != "-m":  # the interpreter's own options
        if command[0] == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        command = command[1:]
    name, *arguments = command[1:] if command[0] == "-m" else command
    sys.orig_argv = [sys.executable, *command]
    if sys.version_info < (3, 10):  # where the runtime asks the system instead
        given, read = "\0".join([*sys.orig_argv, ""]).encode(), Path.read_bytes
        Path.read_bytes = lambda path: given if str(path) == "/proc/self/cmdline" else read(path)
    sys.argv = [name, *arguments]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = os.getcwd() if command[0] == "-m" else os.path.dirname(name)
    sys.path[:] = dict.fromkeys([first, *filter(None, path), *sys.path[1:]])
    if command[0] == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def launch(ranks: int, *command: str) -> None:
    """As `run`, where the script will start ranks: these are forked, too, beforehand, as it has threads then.

    Whether it does so by itself or is torchrun, which takes some more for each time that it starts them again.
    """
    waiting: list[_Rank] = []
    for _ in range(ranks):
        waiting.append(_Rank(waiting))
    begin = iter(waiting)

    def popen(args: Sequence[str], **options: Any) -> _Rank:
        return next(begin).go_on(args[1:], **options)

    stand_in = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    launcher: Any
    if command[:2] != ("-m", "torch.distributed.run"):
        launcher = importlib.import_module("dp2ddp_runtime.birth")
        launcher.subprocess = stand_in
    elif importlib.util.find_spec(f"{_ELASTIC}.subprocess_handler"):
        launcher = importlib.import_module(f"{_ELASTIC}.subprocess_handler.subprocess_handler")
        launcher.Popen = popen
    else:  # before torch 2.2
        launcher = importlib.import_module(f"{_ELASTIC}.api")
        launcher.subprocess = stand_in
    run(*command)


_ELASTIC = "torch.distributed.elastic.multiprocessing"


class _Rank:
    """A child that waits to be told what to run, with what the launcher needs of a `subprocess.Popen`."""

    def __init__(self, others: Sequence[_Rank]) -> None:
        self._code: int | None = None
        self._channel, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            for each in (self, *others):
                each._channel.close()
            try:
                told, streams = _receive(theirs)
            except EOFError:
                os._exit(0)
            if told["session"]:
                os.setsid()
            theirs.close()
            os._exit(_be_child(told, streams))
        theirs.close()

    def go_on(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None = None,
        start_new_session: bool = False,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
    ) -> _Rank:
        told: dict[str, Any] = {
            "target": "forks:run",
            "arguments": command,
            "variables": dict(env),
            "folder": cwd or os.getcwd(),
        }
        with open(os.devnull, "r+") as nothing:
            errors = stderr.fileno() if hasattr(stderr, "fileno") else stderr
            given = [own if each is None else each for own, each in enumerate((stdin, stdout, errors))]
            streams = [nothing.fileno() if each == subprocess.DEVNULL else each for each in given]
            told.update(streams=3, session=start_new_session, kept=[*pass_fds])
            _send(self._channel, told, [*streams, *pass_fds])
        self._channel.recv(1)  # closed: it leads its session from here on
        self._channel.close()
        return self

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float = math.inf) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _send(channel: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    text = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(channel, [text], descriptors) if descriptors else 0
    if text[sent:]:  # the other end may have all, and be closed
        channel.sendall(text[sent:])


def _receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """A message and the descriptors that came with it; EOFError when nobody is there any more."""
    text, descriptors = b"", []
    while not text.endswith(b"\n"):  # JSON has none inside, and each message waits for its answer
        part, received, _, _ = socket.recv_fds(channel, 1 << 16, maxfds=8)
        if not part:
            raise EOFError("the process that forks has ended")
        text += part
        descriptors += received
    return json.loads(text), descriptors


def _serve(channel: socket.socket) -> None:
    while True:
        try:
            told, descriptors = _receive(channel)
        except (EOFError, ConnectionResetError):
            return
        if "wait" in told:
            pid, status = os.waitpid(told["wait"], 0 if told["block"] else os.WNOHANG)
            _send(channel, os.waitstatus_to_exitcode(status) if pid else None)
            continue
        child = os.fork()
        if not child:
            channel.close()
            os._exit(_be_child(told, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        _send(channel, child)


def _be_child(told: Mapping[str, Any], descriptors: list[int]) -> int:
    """What a new process does from its start to its end; returns the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if told.get("network"):
        with open(f"/run/netns/{told['network']}") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
    os.environ.clear()
    os.environ.update(told["variables"])
    os.chdir(told["folder"])
    streams, descriptors = descriptors[: told["streams"]], descriptors[told["streams"] :]
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    for number in told.get("kept", ()):
        descriptor = descriptors.pop(0)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # processes that are started by themselves draw other numbers; Python's own
        # generator and torch's look after that
    module, _, function = told["target"].partition(":")
    code = 0
    try:
        getattr(importlib.import_module(module), function)(*told["arguments"], *descriptors)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(ended.code + "\n")
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and with them this process
    gc.disable()  # importing takes a fifth longer with it
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    gc.freeze()  # else a child's first look for garbage copies all of it
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # taking apart what it has imported takes a second
