"""Where ranks meet that a launcher started, besides the address that torchrun gives."""

from __future__ import annotations

import importlib
import os
from typing import Any

from dp2ddp_runtime import operations
from dp2ddp_runtime.base import world

setup = importlib.import_module("dp2ddp_runtime.setup")  # as an attribute of the package that is the function


def _joined_through_file() -> tuple[int, bool]:
    setup.setup(init_method="file://" + os.environ["RANK_POOL_STORE"], backend="gloo")
    operations.barrier()
    return world.rank(), world.current().store is not None


def test_file_init_method(ranks: Any) -> None:
    assert ranks(2, _joined_through_file, join=False) == [(0, True), (1, True)]
