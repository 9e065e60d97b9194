"""The sockets between ranks: every rank's message, in order, or an error that names the rank that is gone."""

from __future__ import annotations

import dataclasses
import random
import time

import pytest
import torch
from dp2ddp_runtime import mesh, world
from dp2ddp_runtime.journal import PeerError
from rank_pool import RankPool


def new_mesh() -> mesh.Mesh:
    made = mesh.joined.__wrapped__()
    assert made is not None
    return made


def gathered(connected: mesh.Mesh, row: torch.Tensor) -> list[torch.Tensor]:
    rows = [torch.zeros_like(row) for _ in range(world.world_size())]
    connected.start(rows, row).wait()
    return rows


def message(rank: int, number: int, size: int) -> torch.Tensor:
    return torch.full((size,), (7 * rank + number) % 251, dtype=torch.uint8)


def many_messages() -> bool:
    """Sizes up to the largest, while the ranks are now ahead of each other, now behind."""
    connected = new_mesh()
    drawn = random.Random(world.rank())
    for number, size in enumerate([1, 16, mesh.LARGEST, mesh.LARGEST, 5000] * 20):
        if drawn.random() < 0.2:
            time.sleep(0.002)
        for rank, row in enumerate(gathered(connected, message(world.rank(), number, size))):
            assert torch.equal(row, message(rank, number, size)), (number, rank)
    return True


@pytest.mark.parametrize("n", [2, 3])
def test_every_rank_gets_every_message(ranks: RankPool, n: int) -> None:
    assert ranks(n, many_messages) == [True] * n


def waiting_twice() -> list[int]:
    connected = new_mesh()
    rows = [torch.zeros(8, dtype=torch.uint8) for _ in range(world.world_size())]
    for number in range(2):
        gathering = connected.start(rows, message(world.rank(), number, 8))
        gathering.wait()
        gathering.wait()
    gathering.start().wait()
    return [int(row[0]) for row in rows]


def test_waiting_again_reads_nothing(ranks: RankPool) -> None:
    assert ranks(2, waiting_twice) == [[1, 8]] * 2


def a_rank_that_goes(sizes: list[int]) -> str:
    connected = new_mesh()
    gathered(connected, message(world.rank(), 0, 8))
    if not sizes[world.rank()]:
        for peer in connected._peers.values():
            peer.close()
        return "gone"
    with pytest.raises(PeerError) as caught:
        gathered(connected, message(world.rank(), 1, sizes[world.rank()]))
    with pytest.raises(PeerError):
        gathered(connected, message(world.rank(), 1, 8))
    return str(caught.value)


def test_a_rank_that_is_gone_is_named(ranks: RankPool) -> None:
    told, gone = ranks(2, a_rank_that_goes, [8, 0])
    assert gone == "gone"
    assert told.startswith("rank 1 can't be reached any more")


def test_ranks_that_are_in_different_places_are_told_so(ranks: RankPool) -> None:
    for told in ranks(2, a_rank_that_goes, [8, 16]):
        assert "elsewhere in the script" in told or "can't be reached" in told


def a_rank_that_is_late() -> bool:
    connected = new_mesh()
    for peer in connected._peers.values():
        peer.settimeout(0.2)
    if world.rank() == 1:
        time.sleep(1)
        return True
    with pytest.raises(PeerError, match="timed out"):
        gathered(connected, message(0, 0, 8))
    return True


def test_nobody_waits_for_ever(ranks: RankPool) -> None:
    assert ranks(2, a_rank_that_is_late) == [True, True]


def without_a_mesh(how: str) -> bool:
    """Whether there is none: one rank is elsewhere or can't listen, or none of them reaches the others."""
    before, listen, largest, mkdtemp = world.current(), mesh._listen, mesh.LARGEST, mesh.tempfile.mkdtemp
    try:
        if how == "elsewhere" and world.rank() == 1:
            world.enter(dataclasses.replace(before, local_world_size=1))
        if how == "deaf" and world.rank() == 0:
            mesh._listen = lambda stack: None
        if how == "small" and world.rank() == 0:
            mesh.LARGEST = 1 << 25
        if how == "full" and world.rank() == 1:
            mesh.tempfile.mkdtemp = no_room
        if how == "unreachable":
            mesh._listen = lambda stack: (made := listen(stack)) and Mislaid(made)
        return mesh.joined.__wrapped__() is None
    finally:
        world.enter(before)
        mesh._listen, mesh.LARGEST, mesh.tempfile.mkdtemp = listen, largest, mkdtemp


def no_room(prefix: str) -> str:
    raise OSError(28, "No space left on device")


class Mislaid:
    """A listener that tells a name where nobody listens."""

    def __init__(self, listener: mesh.socket.socket) -> None:
        self.listener = listener

    def getsockname(self) -> str:
        return self.listener.getsockname() + ".gone"

    def settimeout(self, seconds: float) -> None:
        self.listener.settimeout(0.2)

    def accept(self) -> object:
        return self.listener.accept()


@pytest.mark.parametrize("how", ["elsewhere", "deaf", "small", "full", "unreachable"])
def test_without_all_ranks_in_reach_there_is_no_mesh(ranks: RankPool, how: str) -> None:
    assert ranks(2, without_a_mesh, how) == [True, True]
