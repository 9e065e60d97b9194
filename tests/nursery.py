"""One fork server for the runs of all tests: importing torch is most of a short run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dp2ddp.verify.start import client
from dp2ddp.verify.start.client import ForkServer

_MODULES = ("torch._dynamo", "torchvision.datasets", "torchvision.transforms", "torchvision.utils")


class Nursery:
    """A fork server that is there as long as the tests."""

    def __init__(self) -> None:
        self._server = ForkServer(modules=_MODULES)

    def close(self) -> None:
        self._server.close()

    @contextmanager
    def installed(self) -> Iterator[Any]:
        """While this lasts, runs that would have a fork server of their own have this one."""
        lent = _Lent(self._server)
        with mock.patch.object(client, "ForkServer", return_value=lent):
            yield lent


class _Lent:
    """The fork server, for those who end it with their context."""

    def __init__(self, server: ForkServer) -> None:
        self.start, self.poll = server.start, server.poll

    def close(self) -> None:
        """It is needed again."""

    def __enter__(self) -> _Lent:
        return self

    def __exit__(self, *told: object) -> None:
        self.close()
