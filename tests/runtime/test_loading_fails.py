"""Samples that can't be loaded: the rank that has them raises, and the others don't go on without it."""

from __future__ import annotations

from typing import Any

import dp2ddp_runtime as ddp
import pytest
from dp2ddp_runtime.world import exchange
from loading import Sized, longest
from rank_pool import RankError, RankPool
from torch.utils.data import DataLoader


class Gaps(Sized):
    """Some of its samples raise."""

    size = 18

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise FileNotFoundError(f"no sample {index}")
        return index


def over_gaps(bad: tuple[int, ...], workers: int, whole: bool = False) -> list[Any]:
    """What a script gets that goes on with the next batch, and uses each."""
    found: list[Any] = []
    options: dict[str, Any] = {"collate_fn": longest} if whole else {}
    batches = iter(ddp.shard_loader(DataLoader(Gaps(*bad), 3, num_workers=workers, **options)))
    while True:
        try:
            batch = next(batches)
        except FileNotFoundError as error:
            found.append(str(error).strip().splitlines()[-1].removeprefix("FileNotFoundError: "))
        except StopIteration:
            return found
        else:
            found.append(batch[1] if whole else batch.tolist())
        exchange("a step")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_script_that_goes_on_where_one_rank_could_not_load_a_batch_is_told(ranks: RankPool, workers: int) -> None:
    with pytest.raises(RankError) as error:
        ranks(2, over_gaps, (4,), workers)  # of rank 0's rows in the second batch
    for text in error.value.failures.values():
        *_, last = text.strip().splitlines()
        assert last.startswith("dp2ddp_runtime.world.Divergence: ")
        assert ("no sample 4" in last) == (workers == 1) or "come apart" in last


@pytest.mark.parametrize("workers", [0, 1])
def test_where_all_load_whole_batches_all_go_on_with_the_next(ranks: RankPool, workers: int) -> None:
    expected = over_gaps((4, 13), workers, whole=True)
    assert len(expected) == 6
    for found in ranks(2, over_gaps, (4, 13), workers, whole=True):
        assert found == expected
