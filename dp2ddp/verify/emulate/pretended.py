"""A side on pretend CUDA devices: torch's own `nn.DataParallel` over them, or a rank that sees one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dp2ddp.pretend_cuda import install as pretend
from dp2ddp.pretend_cuda.data_parallel import OracleDataParallel


def install(devices: int) -> None:
    """Let this process have `devices` CUDA devices; `CUDA_VISIBLE_DEVICES` may show fewer.

    A rank that was told which of them is its own sees no other, as if the runtime were imported only now.
    """
    from dp2ddp_runtime.base import world
    from dp2ddp_runtime.launch.devices import take_own

    pretend(devices)
    if world.GPU in os.environ:
        take_own()


class PretendedDataParallel(OracleDataParallel):
    """Tells how it splits its batches; torch's own otherwise, as a script that saves its model whole shows it, too."""

    def parallel_apply(self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        """As torch's own is called."""
        self.splits([*zip(inputs, kwargs)])
        return super().parallel_apply(replicas, inputs, kwargs)

    def splits(self, calls: Sequence[Any]) -> None:
        """Is called whenever a batch is split over several replicas, with what each is called with."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_own": {}})  # type: ignore[no-untyped-call]
