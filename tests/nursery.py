"""One keeper for the runs of all tests: importing torch is most of a short run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

from dp2ddp.verify.run import runs
from dp2ddp.verify.start import keeping
from dp2ddp.verify.start.keeping import Keeping

_MODULES = ("torch._dynamo", "torchvision.datasets", "torchvision.transforms", "torchvision.utils")


class Nursery:
    """A keeper that is there as long as the tests."""

    def __init__(self) -> None:
        self._keeper = Keeping()
        self._keeper.share(_MODULES)

    def close(self) -> None:
        self._keeper.close()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, runs that would have a keeper of their own have this one."""

        def opened(folder: Path | None) -> nullcontext[Keeping]:
            return nullcontext(self._keeper)

        lent = mock.patch.object(runs, "Keeping", return_value=_Lent(self._keeper))
        with mock.patch.object(keeping, "opened", opened), lent:
            yield


class _Lent:
    """The keeper, for a run that ends it with its context."""

    def __init__(self, keeper: Keeping) -> None:
        self.start = keeper.start

    def close(self) -> None:
        """It is needed again."""
