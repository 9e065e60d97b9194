"""`shard_loader(loader, rows=True)`: each rank loads and collates its own rows, and what has none is found."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from dp2ddp_runtime.world import Divergence, exchange, world
from loading import Sized, described, is_rows
from rank_pool import RankPool, on_ranks
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


@dataclass
class Labels:
    names: list[str]
    numbers: torch.Tensor


Pair = namedtuple("Pair", "first second")


class Images(Sized):
    """An image, and some boxes: as many as it has."""

    def __init__(self, draws: bool = False) -> None:
        self.draws = draws

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + float(torch.rand(())) if self.draws else 0.0
        boxes = torch.arange(4.0 * (index % 3)).reshape(-1, 4) + index
        return torch.full((3, 80, 80), index + noise), boxes, f"image {index}"


def detection(samples: list[Any]) -> Any:
    """With everything that a batch may be made of."""
    images, boxes, names = zip(*samples)
    targets = [{"boxes": each, "count": len(each), "size": (80, [80.0])} for each in boxes]
    numbers = torch.stack([image[0, 0, 0] for image in images])
    return {
        "images": torch.stack(images),
        "targets": targets,
        "boxes": boxes,
        "labels": Labels(list(names), numbers),
        "arrays": np.stack([np.full(2, len(each), np.int16) for each in boxes]),
        "pair": Pair(numbers > 3, [None] * len(images)),
        "classes": ("cat", "dog"),
        "version": 2,
        "anchors": torch.tensor([1.0, float("nan")]),
        "nothing": None,
    }


def loaded(size: int, workers: int, passes: int = 2) -> list[Any]:
    torch.manual_seed(3)
    loader = ddp.shard_loader(
        DataLoader(Images(), size, shuffle=True, num_workers=workers, collate_fn=detection), rows=True
    )
    return [described(batch) for _ in range(passes) for batch in loader]


@pytest.mark.parametrize(("n", "size", "workers"), [(3, 5, 0), (2, 1, 2)])
def test_batches_are_the_original_s(ranks: RankPool, n: int, size: int, workers: int) -> None:
    """Ragged ones, those that leave ranks idle, and those of a single row included."""
    expected = loaded(size, workers)
    for batches in ranks(n, loaded, size, workers):
        assert batches == expected


@on_ranks(2, each=True)
def test_each_rank_holds_its_rows_of_what_has_rows() -> bool:
    rows = [[0, 1], [4, 5], [8, 9]] if world.rank == 0 else [[2, 3], [6, 7], [10]]
    for workers in (0, 1):
        loader = ddp.shard_loader(DataLoader(Images(), 4, collate_fn=detection, num_workers=workers), rows=True)
        for own, batch in zip(rows, loader):
            assert is_rows(batch["images"])
            assert batch["images"]._rows[:, 0, 0, 0].tolist() == own
            assert is_rows(batch["labels"].numbers)
            assert not any(is_rows(each["boxes"]) for each in batch["targets"])
    return True


def drawn(workers: int) -> Any:
    ddp.seed_everything(4)
    loader = DataLoader(Images(draws=True), 4, shuffle=True, num_workers=workers, collate_fn=detection)
    batches = [described(batch) for _ in range(2) for batch in ddp.shard_loader(loader, rows=True)]
    return batches, torch.rand(()).item(), random.random()


def test_samples_draw_as_in_the_original_and_ranks_agree(ranks: RankPool) -> None:
    assert ranks(2, drawn, 0) == [drawn(0)] * 2
    first, *others = ranks(3, drawn, 2)
    assert all(other == first for other in others)
    numbers = eval(first[0][0]["labels"][1]["numbers"][1])
    assert len({number % 1 for number in numbers}) == 4, "no two samples have the same draws"


# What rows=True doesn't say the truth of. Most of it is believed; where shapes tell, it is an error.


def joined(samples: list[Any]) -> Any:
    return torch.cat([image for image, *_ in samples])


class Batch:
    def __init__(self, images: list[torch.Tensor]) -> None:
        self.images = images


def own_class(samples: list[Any]) -> Any:
    return [Batch([image for image, *_ in samples])]


def counted(samples: list[Any]) -> Any:
    return torch.stack([image for image, *_ in samples]), sum(len(boxes) for _, boxes, _ in samples)


def refused(collate: Callable[[Any], Any], workers: int) -> str:
    loader = ddp.shard_loader(DataLoader(Images(), 4, collate_fn=collate, num_workers=workers), rows=True)
    try:
        for _ in loader:
            exchange("a step")
    except (ValueError, Divergence) as error:
        world.agreed.clear()
        return str(error)
    return ""


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (joined, "batch is a Tensor of shape [6, 80, 80] for 2 samples, which neither grows by one with each sample"),
    (own_class, "batch[0] is a Batch for 2 samples"),
]
DIFFERS: list[tuple[Callable[[Any], Any], str]] = [
    (counted, "rank 0: [['torch.float32', 3, 80, 80], '1']; rank 1: [['torch.float32', 3, 80, 80], '2']"),
]


def all_refused(workers: int) -> list[list[str]]:
    # With workers only some: torch takes five seconds to end those of a pass that failed.
    return [[refused(each, workers) for each, _ in kind[: 1 if workers else None]] for kind in (REFUSED, DIFFERS)]


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_do_not_stay_apart_are_an_error(ranks: RankPool, workers: int) -> None:
    for refused_ones, differing in ranks(2, all_refused, workers):
        for text, (_, told) in zip(refused_ones, REFUSED):
            assert told in text
            assert "Leave out rows=True" in text
        for text, (_, told) in zip(differing, DIFFERS):
            assert "what a batch of a DataLoader is, but for its rows, at test_rows_apart.py:" in text
            assert told in text


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


def others() -> list[Any]:
    original = DataLoader(Images(), 4, collate_fn=detection)
    loader = ddp.shard_loader(original, rows=True)
    found: list[Any] = [ddp.shard_loader(original) is loader]
    numbers = TensorDataset(torch.arange(8))
    found.append([batch.tolist() for (batch,) in ddp.shard_loader(DataLoader(numbers, 4), rows=True)])
    rowless: list[Any] = [DataLoader(Stream(), 2), DataLoader(numbers, batch_size=None), [[1, 2]]]
    for each in rowless:
        with pytest.raises(ValueError, match="rows=True"):
            ddp.shard_loader(each, rows=True)
    return found


def test_a_loader_keeps_it_and_other_loaders_have_no_rows(ranks: RankPool) -> None:
    assert ranks(2, others) == [[True, [[0, 1, 2, 3], [4, 5, 6, 7]]]] * 2
