"""Reductions: exact, typed, and weighted by the shards' sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime import loader as loaders
from dp2ddp_runtime import metrics, world
from rank_pool import RankPool
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    """As in the ImageNet example."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.val = self.avg = self.sum = self.count = 0.0

    def update(self, val: float, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Ratio:
    """A meter with properties."""

    def __init__(self) -> None:
        self.sum, self.count = torch.tensor(0.0), 0

    @property
    def avg(self) -> float:
        return float(self.sum) / self.count


def reduced() -> Any:
    rank = world.rank()
    meter = Meter("loss")
    meter.update(2.0 + rank, 3)
    ratio = Ratio()
    ratio.sum, ratio.count = torch.tensor(6.0 * (rank + 1)), 2
    total = metrics.all_reduce(2**53 + rank, 0.1, True, np.float32(1.5), torch.tensor([1, rank]), op="sum")
    new, other = metrics.all_reduce(meter, ratio)
    assert meter.sum == 3 * (2.0 + rank), "meters stay as they are"
    nested = metrics.all_reduce({"a": [rank, (1.5,)], "b": torch.ones(2, dtype=torch.bool)})
    extremes = [metrics.all_reduce(rank, torch.tensor([rank, -rank]), rank == 0, op=op) for op in ("max", "min")]
    mean = metrics.all_reduce(rank, torch.tensor(1.0 + rank), torch.tensor(rank), op="mean")
    array = metrics.all_reduce(np.array([1, rank]))
    assert isinstance(array, np.ndarray)
    return (
        total,
        (new.name, new.sum, new.count, new.avg, new.val),
        (other.sum, other.count, other.avg),
        nested,
        extremes,
        mean,
        (array.dtype.str, array.tolist()),
    )


def test_values_over_two_ranks(ranks: RankPool) -> None:
    for total, meter, ratio, nested, extremes, mean, array in ranks(2, reduced):
        assert total[:3] == (2**54 + 1, 0.2, 2)
        assert isinstance(total[2], int)
        assert (total[3], total[3].dtype) == (np.float32(3.0), np.float32)
        assert torch.equal(total[4], torch.tensor([2, 1]))
        assert meter == ("loss", 15.0, 6, 2.5, 2.5)
        assert ratio == (torch.tensor(18.0), 4, 4.5)
        assert nested["a"] == [1, (3.0,)]
        assert torch.equal(nested["b"], torch.tensor([2, 2]))
        (largest, *_), (smallest, *_) = extremes
        assert (largest, smallest) == (1, 0)
        assert [value.tolist() for value in (extremes[0][1], extremes[1][1])] == [[1, 0], [0, -1]]
        assert (extremes[0][2], extremes[1][2]) == (True, False)
        assert mean[0] == 0.5
        assert torch.equal(mean[1], torch.tensor(1.5))
        assert torch.equal(mean[2], torch.tensor(0.5))
        assert array == ("<i8", [2, 1])


def wrong() -> str:
    with pytest.raises(ValueError, match="op must be one of sum, mean, max, min, not 'avg'"):
        metrics.all_reduce(1, op="avg")
    with pytest.raises(TypeError, match="not str"):
        metrics.all_reduce("text")
    return "raised"


def test_what_can_not_be_reduced(ranks: RankPool) -> None:
    assert ranks(2, wrong) == ["raised"] * 2


def over_a_loader(gather: bool) -> Any:
    values = torch.arange(1.0, 8.0, dtype=torch.double)
    loader = loaders.shard_loader(DataLoader(TensorDataset(values), 5), gather)
    running, means, lists, batches = 0.0, [], [], []
    meter = Meter("mean")
    for (batch,) in loader:
        mean = batch.mean()
        running += metrics.weighted(mean, over=loader).item()
        means.append(metrics.all_reduce(mean.item(), op="mean", over=loader))
        meter.update(mean.item(), len(batch))
        means.append(metrics.all_reduce(meter, over=loader).val)
        lists.extend(batch.tolist())
        batches.append(batch)
    running, count = metrics.all_reduce(running, len(lists), over=loader)
    meter = metrics.all_reduce(meter, over=loader)
    whole = metrics.gather(batches, over=loader)
    return running, count, means, meter.avg, sorted(metrics.gather(lists, over=loader)), [b.tolist() for b in whole]


@pytest.mark.parametrize(("n", "gather"), [(1, False), (2, False), (2, True), (3, True)])
def test_means_over_a_loader_are_the_whole_batches_means(ranks: RankPool, n: int, gather: bool) -> None:
    for running, count, means, average, values, batches in ranks(n, over_a_loader, gather):
        assert running == pytest.approx(3.0 + 6.5)
        assert count == 7
        assert means == pytest.approx([3.0, 3.0, 6.5, 6.5])
        assert average == pytest.approx(4.0)
        assert values == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        assert batches == [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0]]


def gathered() -> Any:
    rank = world.rank()
    rows = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    out = metrics.gather({"rows": rows, "scalar": torch.tensor(rank), "list": [rank] * rank, "text": f"r{rank}"})
    assert not out["rows"].requires_grad
    return out, metrics.gather(np.full(rank, rank)).tolist(), metrics.gather((rank, [np.ones(1), torch.ones(2)]))


def test_gather_joins_in_rank_order(ranks: RankPool) -> None:
    for out, array, (numbers, batches) in ranks(3, gathered):
        assert out["rows"][:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert out["scalar"].tolist() == [0, 1, 2]
        assert out["list"] == [1, 2, 2]
        assert out["text"] == ["r0", "r1", "r2"]
        assert array == [1, 2, 2]
        assert numbers == [0, 1, 2]
        assert [len(batch) for batch in batches] == [3, 6]


def test_with_one_rank_values_are_themselves() -> None:
    meter = Meter("x")
    assert metrics.all_reduce(meter) is meter
    assert metrics.all_reduce(1, "text", op="max") == (1, "text")
    assert metrics.weighted(3, over=None) == 3
    value = [object()]
    assert metrics.gather(value) is value
