"""Random streams: what is shared stays shared, what is a rank's own differs, and seeds mean what they meant."""

from __future__ import annotations

import queue
import random
import threading
import time
from contextlib import nullcontext
from typing import Any

import dp2ddp_runtime as ddp
import numpy as np
import torch
from dp2ddp_runtime import streams
from dp2ddp_runtime.world import world
from loading import Sized
from rank_pool import RankPool, on_ranks
from torch import nn
from torch.utils.data import DataLoader


def draw(count: int = 1) -> list[tuple[float, ...]]:
    """Draws from every generator; of NumPy's normal numbers, which come in pairs, both."""
    return [
        (torch.rand(1).item(), random.random(), random.gauss(0, 1), float(np.random.rand()), *np.random.randn(2))
        for _ in range(count)
    ]


def test_seed_everything_is_what_seeding_by_hand_gives() -> None:
    random.seed(2**40 + 5)
    np.random.seed(5 + 2**40 % 2**32)
    torch.manual_seed(2**40 + 5)
    expected = draw(3)
    for seed in (2**40 + 5, float(2**40 + 5)):  # torch takes both
        ddp.seed_everything(seed)  # type: ignore[arg-type]
        assert draw(3) == expected


def own_numbers() -> list[float]:
    found = []
    streams.own_start()
    for seed in (3, 3, 40):
        torch.manual_seed(seed)
        for _ in range(2):
            with streams.forward:
                found.append(torch.rand(1).item())
    return found


def test_own_streams_begin_anew_where_the_script_seeds_torch(ranks: RankPool) -> None:
    first, second = ranks(2, own_numbers)
    assert first[:2] == first[2:4]  # also with the seed that it had
    assert len({*first, *second}) == 8
    generator = torch.Generator().manual_seed(streams.replica_seed(3, 1))
    assert second[0] == torch.rand(1, generator=generator).item()


class Noisy(nn.Linear):
    """Draws in its backward, as ShakeShake does: numbers for each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        out.register_hook(torch.rand_like)
        return out


@on_ranks(2)
def test_after_a_backward_that_draws_for_uneven_rows_the_ranks_draw_the_same() -> None:
    net = ddp.wrap_model(Noisy(2, 2))
    for number in range(3):
        net(torch.ones(3, 2)).sum().backward()
        assert len(set(ddp.gather(torch.rand(1).item()))) == 1, number


class Drawing(Sized):
    """Samples draw, and take their time."""

    size = 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        time.sleep(0.0005 * (1 + world.rank))
        return torch.rand(4) + index, random.random() + np.random.rand()


def read_in_a_thread(shard: bool) -> Any:
    """A thread loads ahead while a model with dropout is trained."""
    ddp.seed_everything(3)
    loader = (ddp.shard_loader if shard else lambda given: given)(DataLoader(Drawing(), 4, shuffle=True))
    ahead: queue.Queue[Any] = queue.Queue(2)

    def read() -> None:
        for _ in range(2):
            for batch in loader:
                ahead.put(batch)
        ahead.put(None)

    thread = threading.Thread(target=read)
    thread.start()
    found = []
    dropout = nn.Dropout() if shard else nn.Identity()
    while (batch := ahead.get()) is not None:
        behind_a_backward = streams.adopting()
        with streams.forward if shard else nullcontext():
            time.sleep(0.001 * (2 - world.rank))
            dropout(torch.ones(100))
        behind_a_backward()
        found.append([column.tolist() for column in batch])
    thread.join()
    return found, torch.rand(1).item()


def test_a_thread_that_reads_a_loader_gets_the_originals_batches(ranks: RankPool) -> None:
    assert ranks(3, read_in_a_thread, True) == [read_in_a_thread(False)] * 3


@on_ranks(2)
def test_a_thread_that_draws_while_a_forward_runs_has_its_stream_for_itself() -> None:
    """A script's own generator of batches: NumPy's and Python's numbers come one after the other."""
    ddp.seed_everything(3)
    expected = [(float(np.random.rand()), random.random()) for _ in range(20)]
    ddp.seed_everything(3)
    wanted, drawn = queue.Queue[bool](), queue.Queue[Any]()

    def make() -> None:
        while wanted.get():
            drawn.put((float(np.random.rand()), random.random()))

    def draw_in_the_thread() -> None:
        wanted.put(True)
        found.append(drawn.get())

    threading.Thread(target=make).start()
    found: list[Any] = []
    own = []
    while len(found) < 20:
        for rank in (1, None, 0):  # rank 1's is ahead
            if rank is None:
                streams.adopt()
            elif rank == world.rank:
                draw_in_the_thread()
        with streams.forward:
            draw_in_the_thread()
            own.append(torch.rand(1).item())
    before = streams.Position()
    random.random()
    assert before.moved  # whoever it was: samples that draw are loaded whole
    wanted.put(False)
    assert found == expected
    first, second = ddp.gather(own)
    assert not {*first} & {*second}
