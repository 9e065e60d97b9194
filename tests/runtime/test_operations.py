"""Values over all ranks: exact, typed, in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime import operations
from dp2ddp_runtime.base import world
from rank_pool import RankPool


def reduced() -> Any:
    rank = world.rank()
    half = torch.full((2,), 2048.0 + 2 * rank, dtype=torch.half)
    total = operations.all_reduce(2**53 + rank, 0.1, True, np.float32(1.5), torch.tensor([1, rank]), half)
    nested = operations.all_reduce({"a": [rank, (1.5,)], "b": torch.ones(2, dtype=torch.bool)})
    extremes = [operations.all_reduce(rank, torch.tensor([rank, -rank]), rank == 0, op=op) for op in ("max", "min")]
    mean = operations.all_reduce(rank, torch.tensor(1.0 + rank), torch.tensor(rank), half, op="mean")
    return total, nested, extremes, mean


def test_values_over_two_ranks(ranks: RankPool) -> None:
    for total, nested, extremes, mean in ranks(2, reduced):
        assert total[:4] == (2**54 + 1, 0.2, 2, 3.0)
        assert isinstance(total[2], int)
        assert torch.equal(total[4], torch.tensor([2, 1]))
        assert torch.equal(total[5], torch.tensor([4098.0, 4098.0]).half())
        assert nested["a"] == [1, (3.0,)]
        assert torch.equal(nested["b"], torch.tensor([2, 2]))
        (largest, *_), (smallest, *_) = extremes
        assert (largest, smallest) == (1, 0)
        assert [value.tolist() for value in (extremes[0][1], extremes[1][1])] == [[1, 0], [0, -1]]
        assert (extremes[0][2], extremes[1][2]) == (True, False)
        assert mean[0] == 0.5
        assert torch.equal(mean[1], torch.tensor(1.5))
        assert torch.equal(mean[2], torch.tensor(0.5, dtype=torch.double))
        assert mean[3].dtype == torch.half


def large() -> Any:
    return operations.all_reduce(2**63 - 1, 2**80 + world.rank()), operations.all_reduce(2**80 + world.rank(), op="max")


def test_integers_are_exact_whatever_their_size(ranks: RankPool) -> None:
    assert ranks(2, large) == [((2**64 - 2, 2**81 + 1), 2**80 + 1)] * 2


def wrong() -> str:
    with pytest.raises(ValueError, match="op must be one of sum, mean, max, min, not 'avg'"):
        operations.all_reduce(1, op="avg")
    with pytest.raises(TypeError, match="str"):
        operations.all_reduce("text")
    with pytest.raises(TypeError, match="object can't be sent"):
        operations.gather(object())
    return "raised"


def test_what_can_not_be_reduced(ranks: RankPool) -> None:
    assert ranks(2, wrong) == ["raised"] * 2


def gathered() -> Any:
    rank = world.rank()
    rows = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    out = operations.gather({"rows": rows, "scalar": torch.tensor(rank), "list": [rank] * rank, "text": f"r{rank}"})
    assert not out["rows"].requires_grad
    return out, operations.gather((rank, [torch.full((rank,), rank)]))


def test_gather_joins_in_rank_order(ranks: RankPool) -> None:
    for out, (numbers, batches) in ranks(3, gathered):
        assert out["rows"][:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert out["scalar"].tolist() == [0, 1, 2]
        assert out["list"] == [1, 2, 2]
        assert out["text"] == ["r0", "r1", "r2"]
        assert numbers == [0, 1, 2]
        assert [batch.tolist() for batch in batches] == [[], [1], [2, 2]]


def test_with_one_rank_values_are_themselves() -> None:
    assert operations.all_reduce(1, "text", op="max") == (1, "text")
    value = [object()]
    assert operations.gather(value) is value
