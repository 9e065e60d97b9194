"""The package's own functions: values over all ranks, exact, typed, in rank order; names that it has and hasn't."""

from __future__ import annotations

from typing import Any

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from dp2ddp_runtime import operations
from dp2ddp_runtime.base import world
from rank_pool import RankPool


def gathered() -> Any:
    rank = world.rank()
    with pytest.raises(TypeError, match="object can't be sent"):
        operations.gather(object())
    rows = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    return operations.gather({"rows": rows, "number": 2**80 + rank, "kinds": (rank, {np.float32(rank)})})


def test_gather_gives_each_rank_s(ranks: RankPool) -> None:
    for found in ranks(3, gathered):
        rows = torch.cat([each["rows"] for each in found])
        assert rows[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert not rows.requires_grad
        assert sum(each["number"] for each in found) == 3 * 2**80 + 3
        assert [each["kinds"] for each in found] == [(rank, {np.float32(rank)}) for rank in range(3)]
        assert type(found[1]["kinds"][1].pop()) is np.float32


def test_with_one_rank_values_are_themselves() -> None:
    value = [object()]
    assert operations.broadcast(value) is value
    assert operations.gather(value)[0] is value


def test_a_name_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(
        AttributeError, match=rf"dp2ddp_runtime {ddp.__version__} has no 'later': .* install the dp2ddp"
    ):
        ddp.later()
    with pytest.raises(ImportError):
        from dp2ddp_runtime import later  # noqa: F401


def test_what_python_asks_for_is_not_there_in_the_usual_way() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dp2ddp_runtime' has no attribute '__wrapped__'$"):
        ddp.__wrapped__  # noqa: B018
    assert all(hasattr(ddp, name) for name in ddp.__all__)
