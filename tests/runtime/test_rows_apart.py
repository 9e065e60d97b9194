"""`shard_loader(loader, rows=True)`: each rank loads and collates its own rows, and what has none is found."""

from __future__ import annotations

import os
import random
import tempfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.batches.deferred import Deferred
from dp2ddp_runtime.ranks import rng
from dp2ddp_runtime.ranks.exchange import Divergence
from rank_pool import RankPool
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training import Sized


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
        "transposed": torch.stack([image[0, 0, :5] for image in images], dim=1),
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


def described(value: Any) -> Any:
    """What the script can see of a batch, but for its tensors' class."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), repr(value.tolist())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, Labels):
        return "Labels", described(value.names), described(value.numbers)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(item) for item in value]
    return type(value).__name__, value


def loaded(size: int, workers: int, passes: int = 2) -> list[Any]:
    torch.manual_seed(3)
    loader = loaders.shard_loader(
        DataLoader(Images(), size, shuffle=True, num_workers=workers, collate_fn=detection), rows=True
    )
    return [described(batch) for _ in range(passes) for batch in loader]


@pytest.mark.parametrize(("n", "size", "workers"), [(2, 4, 2), (3, 5, 0), (2, 1, 2), (3, 11, 1)])
def test_batches_are_the_original_s(ranks: RankPool, n: int, size: int, workers: int) -> None:
    """Ragged ones, those that leave ranks idle, and those of a single row included."""
    expected = loaded(size, workers)
    for batches in ranks(n, loaded, size, workers):
        assert batches == expected


def held() -> list[Any]:
    found = []
    for batch in loaders.shard_loader(DataLoader(Images(), 4, collate_fn=detection, num_workers=1), rows=True):
        images, other = batch["images"], batch["transposed"]
        assert isinstance(images, Deferred)
        assert not images.is_materialized, "images aren't moved"
        found.append((images.rows[:, 0, 0, 0].tolist(), other.batch_dim, list(other.rows.shape), list(images.shape)))
        targets = [{key: value for key, value in each.items() if key == "boxes"} for each in batch["targets"]]
        assert not any(isinstance(each["boxes"], Deferred) for each in targets)
    return found


def test_each_rank_holds_its_rows_of_what_has_rows(ranks: RankPool) -> None:
    first, second = ranks(2, held)
    assert [rows for rows, *_ in first] == [[0, 1], [4, 5], [8, 9]]
    assert [rows for rows, *_ in second] == [[2, 3], [6, 7], [10]]
    assert first[0][1:] == (1, [5, 2], [4, 3, 80, 80])


class Noted(Images):
    """Writes which samples are loaded into a file, which is nothing that a data set keeps."""

    def __init__(self, file: int, draws: bool) -> None:
        super().__init__(draws)
        self.file = file

    def __getitem__(self, index: int) -> Any:
        os.write(self.file, bytes([index]))
        return super().__getitem__(index)


def what_is_loaded(draws: bool) -> list[int]:
    torch.manual_seed(1)
    with tempfile.TemporaryFile() as file:
        for _ in loaders.shard_loader(DataLoader(Noted(file.fileno(), draws), 4, collate_fn=detection), rows=True):
            pass
        file.seek(0)
        return [*file.read()]


def test_without_workers_a_rank_loads_its_rows_unless_they_draw(ranks: RankPool) -> None:
    everything = [*range(11)]
    assert ranks(2, what_is_loaded, False) == [[0, 1, 2, 3, 4, 5, 8, 9], [0, 1, 2, 3, 6, 7, 10]]
    assert ranks(2, what_is_loaded, True) == [everything] * 2


def drawn(workers: int) -> Any:
    rng.seed_everything(4)
    loader = DataLoader(Images(draws=True), 4, shuffle=True, num_workers=workers, collate_fn=detection)
    batches = [described(batch) for _ in range(2) for batch in loaders.shard_loader(loader, rows=True)]
    return batches, torch.rand(()).item(), random.random()


def test_samples_draw_as_in_the_original_and_ranks_agree(ranks: RankPool) -> None:
    assert ranks(2, drawn, 0) == [drawn(0)] * 2
    first, *others = ranks(3, drawn, 2)
    assert all(other == first for other in others)
    numbers = eval(first[0][0]["labels"][2][1])
    assert len({number % 1 for number in numbers}) == 4, "no two samples have the same draws"


# What rows=True doesn't say the truth of, and what the error names.


def padded(samples: list[Any]) -> Any:
    longest = max(len(boxes) for _, boxes, _ in samples)
    filled = [torch.cat([boxes, boxes.new_full((longest - len(boxes), 4), -1)]) for _, boxes, _ in samples]
    return torch.stack([image for image, *_ in samples]), torch.stack(filled)


def numbered(samples: list[Any]) -> Any:
    """Writes into the samples where they lie."""
    for number, (image, *_) in enumerate(samples):
        image[0, 0, 0] = number
    return torch.stack([image for image, *_ in samples]), [image[0, 0, 0] for image, *_ in samples]


def numbered_boxes(samples: list[Any]) -> Any:
    for number, (_, boxes, _) in enumerate(samples):
        boxes += number
    return torch.stack([image for image, *_ in samples]), [boxes for _, boxes, _ in samples]


def centred(samples: list[Any]) -> Any:
    images = torch.stack([image for image, *_ in samples])
    return images - images.mean(0)


def sorted_by_size(samples: list[Any]) -> Any:
    samples.sort(key=lambda sample: -len(sample[1]))
    return torch.stack([image for image, *_ in samples]), [boxes for _, boxes, _ in samples]


def without_empty(samples: list[Any]) -> Any:
    kept = [sample for sample in samples if len(sample[1])]
    return torch.stack([image for image, *_ in kept or samples])


def joined(samples: list[Any]) -> Any:
    return torch.cat([boxes for _, boxes, _ in samples])


def noisy(samples: list[Any]) -> Any:
    return torch.stack([image for image, *_ in samples]) + torch.rand(())


class Counting:
    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, samples: list[Any]) -> Any:
        self.batches += 1
        return torch.stack([image for image, *_ in samples])


class Batch:
    def __init__(self, images: list[torch.Tensor]) -> None:
        self.images = images


def own_class(samples: list[Any]) -> Any:
    return Batch([image for image, *_ in samples])


def counted(samples: list[Any]) -> Any:
    return torch.stack([image for image, *_ in samples]), sum(len(boxes) for _, boxes, _ in samples)


def refused(collate: Callable[[Any], Any], size: int, workers: int) -> str:
    loader = loaders.shard_loader(DataLoader(Images(), size, collate_fn=collate, num_workers=workers), rows=True)
    found = ""
    for _ in range(2):  # a script that goes on with the next batch is told again
        try:
            list(loader)
        except (ValueError, Divergence) as error:
            found = str(error)
    return found


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (padded, "batch[1] has the shape"),
    (numbered, "batch[0] has rows that depend on"),
    (numbered_boxes, "depends on which other samples"),
    (centred, "batch has rows that depend on"),
    (sorted_by_size, "depend"),
    (without_empty, "batch has the shape"),
    (joined, "batch has the shape"),
    (noisy, "noisy draws random numbers"),
    (Counting(), "Counting changes its 'batches' with each batch"),
    (own_class, "batch has no rows that could be told apart: Batch"),
    (counted, "batch[1] depends on which samples"),
]


def all_refused(workers: int) -> list[str]:
    # With workers only some: torch takes five seconds to end those of a pass that failed.
    return [refused(collate, 6, workers) for collate, _ in REFUSED[: 2 if workers else None]]


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_do_not_stay_apart_are_an_error(ranks: RankPool, workers: int) -> None:
    """Where one rank finds that, all end, and in the same way."""
    for texts in ranks(2, all_refused, workers):
        for text, (_, told) in zip(texts, REFUSED):
            assert told in text
            assert "Leave out rows=True" in text


def test_a_single_row_is_tried_with_that_of_the_batch_before(ranks: RankPool) -> None:
    for text in ranks(2, refused, numbered_boxes, 2, 1):
        assert "don't stay apart" in text


class Late(Sized):
    """What the first batches don't show: from the fourth on, of each rank's rows."""

    size = 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3 if index < 28 else index)


def to_the_longest(samples: list[torch.Tensor]) -> Any:
    longest = max(map(len, samples))
    return torch.stack([torch.cat([each, each.new_zeros(longest - len(each))]) for each in samples])


def longest(samples: list[torch.Tensor]) -> Any:
    return torch.stack([each[:3] for each in samples]), max(map(len, samples))


def late(collate: Any, workers: int) -> str:
    loader = loaders.shard_loader(DataLoader(Late(), 4, collate_fn=collate, num_workers=workers), rows=True)
    with pytest.raises(Divergence) as caught:
        list(loader)
    return str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_first_batches_do_not_show_is_found_where_ranks_differ(ranks: RankPool, workers: int) -> None:
    for text in ranks(2, late, to_the_longest, workers):
        assert "on rank 0 batch is a torch.float32 tensor of rows x 29; on rank 1 batch is a" in text
    for text in () if workers else ranks(2, late, longest, 0):
        assert "on rank 0 batch[1] is 29; on rank 1 batch[1] is 31" in text


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


def others() -> list[Any]:
    original = DataLoader(Images(), 4, collate_fn=detection)
    loader = loaders.shard_loader(original, rows=True)
    found: list[Any] = [loaders.shard_loader(original) is loader]
    numbers = TensorDataset(torch.arange(8))
    found.append([batch.tolist() for (batch,) in loaders.shard_loader(DataLoader(numbers, 4), rows=True)])
    rowless: list[Any] = [DataLoader(Stream(), 2), DataLoader(numbers, batch_size=None), [[1, 2]]]
    for each in rowless:
        with pytest.raises(ValueError, match="rows=True"):
            loaders.shard_loader(each, rows=True)
    return found


def test_a_loader_keeps_it_and_other_loaders_have_no_rows(ranks: RankPool) -> None:
    assert ranks(2, others) == [[True, [[0, 1, 2, 3], [4, 5, 6, 7]]]] * 2
