"""A process that has imported torch and forks players, since importing takes seconds. It has no threads to lose."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_START = "import sys; sys.path[:] = {path!r}; from programs import nursery; nursery.serve({channel})"
_MODULES = ("torch", "torch._dynamo", "torch.distributed", "dp2ddp_runtime", "programs.player")


class Nursery:
    """Starts players, and ends them."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        here = Path(__file__).parents[1]
        path = [str(here), *filter(None, sys.path), str(here.parent / "tests")]  # where the pretend CUDA is
        command = [sys.executable, "-W", "ignore", "-c", _START.format(path=path, channel=theirs.fileno())]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=variables)
        theirs.close()

    def fork(self, told: Mapping[str, Any]) -> tuple[int, Connection]:
        """A new player, its process's number and the pipe to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._channel, [json.dumps(dict(told)).encode()], [theirs.fileno()])
        return int(self._channel.recv(100)), Connection(ours.detach())

    def end(self, pid: int) -> None:
        """End a player at once."""
        self._channel.send(json.dumps({"end": pid}).encode())
        self._channel.recv(100)

    def close(self) -> None:
        """End the process and its players."""
        self._channel.close()
        self._process.wait(30)


def serve(descriptor: int) -> None:
    """In the nursery: do what is asked until nobody is there to ask."""
    for name in _MODULES:
        importlib.import_module(name)
    channel = socket.socket(fileno=descriptor)
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 4096, 1)
        if not message:
            break
        told = json.loads(message)
        if "end" in told:
            children.remove(told["end"])
            _end(told["end"])
            channel.send(b"ended")
            continue
        pid = os.fork()
        if not pid:
            channel.close()
            _play(told, descriptors[0])
        os.close(descriptors[0])
        children.add(pid)
        channel.send(str(pid).encode())
    for pid in children:
        _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # it has not been waited for, so the number is its own
    os.waitpid(pid, 0)


def _play(told: Mapping[str, Any], descriptor: int) -> None:
    """In a child: play, and never come back."""
    try:
        importlib.import_module("programs.player").serve(Connection(descriptor), **told)
    finally:
        os._exit(0)
