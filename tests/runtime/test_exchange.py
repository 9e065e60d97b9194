"""All-gathering parts of any sizes, and the rules of `nn.DataParallel` for nested values."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
import torch.distributed as dist
from dp2ddp_runtime import collectives, exchange, mesh, nesting, outputs, payload, repeating, world
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_pool import RankPool

Pair = namedtuple("Pair", "left right")
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Fields:
    rows: torch.Tensor
    name: str = "x"


def exchanged(kind: type[exchange.Exchange]) -> list[Any]:
    """Parts that shrink and grow, so that the foreseen slots fit and don't; how many gatherings each took."""
    carry = kind()
    calls: list[int] = []
    real = kind._start
    kind._start = lambda self, row: calls.append(len(row)) or real(self, row)
    taken = []
    try:
        for size in (3, 3, 20000, 20000, 5, 100000):
            rows = size * (world.rank() + 1)
            tensors = [torch.arange(rows), torch.rand(0, 4), torch.tensor(True), torch.full((2, 1), 1j).mT]
            for rank, part in enumerate(carry(payload.Part(tensors, ("note", world.rank())), CPU)):
                assert part.note == ("note", rank)
                assert torch.equal(part.tensors[0], torch.arange(size * (rank + 1)))
                assert part.tensors[1].shape == (0, 4)
                assert torch.equal(part.tensors[2], torch.tensor(True))
                assert torch.equal(part.tensors[3], torch.full((1, 2), 1j))
            taken.append(len(calls))
            calls.clear()
    finally:
        kind._start = real
    return taken


def test_one_collective_where_the_size_can_be_foreseen(ranks: RankPool) -> None:
    for n in (2, 3):
        assert ranks(n, exchanged, exchange.Exchange) == [[1, 1, 2, 1, 1, 2]] * n
        assert ranks(n, exchanged, repeating.Repeating) == [[1, 1, 2, 1, 1, 2]] * n


def repeated(connected: bool) -> list[Any]:
    """Parts of which some are like those before, on all ranks or on some; and how many were sent as before."""
    joined = mesh.joined
    if not connected:
        mesh.joined = lambda: None
    carry = repeating.Repeating()
    hits: list[str] = []
    send = repeating._Lane.send
    repeating._Lane.send = lambda self, part: hits.append("again") or send(self, part)
    taken = []
    try:
        # The notes are equal where the types aren't. At call 6, only rank 1 sends another shape.
        for call, note in enumerate([1, 1, 1, True, True, 1.0, 1.0, 1.0, 1.0]):
            rows = 3 + (call == 6 and world.rank() == 1)
            sent = payload.Part([torch.full((rows, 2), call + 10.0 * world.rank())], (note,))
            parts = carry(sent, CPU, "key")
            for rank, part in enumerate(parts):
                assert part.note == (note,)
                assert type(part.note[0]) is type(note)
                shape = (3 + (call == 6 and rank == 1), 2)
                assert torch.equal(part.tensors[0], torch.full(shape, call + 10.0 * rank)), (call, rank)
            taken.append(len(hits))
            hits.clear()
    finally:
        repeating._Lane.send = send
        mesh.joined = joined
    return taken


@pytest.mark.parametrize("connected", [True, False])
def test_what_is_like_before_is_only_copied(ranks: RankPool, connected: bool) -> None:
    first, second = ranks(2, repeated, connected)
    assert first == [0, 0, 1, 0, 1, 0, 1, 1, 1]
    assert second == [0, 0, 1, 0, 1, 0, 0, 0, 1]


def large_parts() -> list[int]:
    """How many buffers are kept after small parts, and after large ones with other keys."""
    carry = repeating.Repeating()
    kept = []
    for rows in (10, mesh.LARGEST):
        for call in range(4):
            parts = carry(payload.Part([torch.full((rows,), call + world.rank())]), CPU, rows)
            assert [int(part.tensors[0].sum()) for part in parts] == [rows * (call + rank) for rank in range(2)]
        kept.append(len(carry._lanes))
    return kept


def test_the_buffers_of_large_parts_are_not_kept(ranks: RankPool) -> None:
    assert ranks(2, large_parts) == [[1, 1]] * 2


def notes_in_between(sizes: list[int]) -> bool:
    """Rank 0 has a note of its own at times, which isn't plain and may take more room; the slots must stay the same."""
    carry = repeating.Repeating()
    for call, size in enumerate(sizes):
        told = [f"{call:04}" * size] if size else None
        note = told if world.rank() == 0 else None
        rows = 6 if size == 0 and call % 5 == 4 else 2
        sent = payload.Part([torch.full((rows,), call + 10 * world.rank())], note)
        for rank, part in enumerate(carry(sent, CPU, "key")):
            assert part.note == (told if rank == 0 else None), call
            assert part.tensors[0].tolist() == [call + 10 * rank] * rows, call
    return True


def test_the_ranks_foresee_the_same_sizes_after_other_notes(ranks: RankPool) -> None:
    for size in range(1, 40):
        assert ranks(2, notes_in_between, [0, 0, 0, size, 0, 0, size, size, size, size, 0, 0]) == [True, True]


def more_keys_than_are_kept() -> bool:
    exchange._MOST_KEYS = 3
    carry = repeating.Repeating()
    try:
        for call in range(60):
            key = call % 5 if call < 20 else call % 2 if call < 50 else call
            note = [call] if world.rank() == 0 and call % 7 == 0 else None
            sent = payload.Part([torch.full((call % 4,), world.rank())], note)
            for rank, part in enumerate(carry(sent, CPU, key)):
                assert part.note == ([call] if rank == 0 and call % 7 == 0 else None)
                assert part.tensors[0].tolist() == [rank] * (call % 4)
            assert len(carry._slots) <= 4
            assert len(carry._lanes) <= 4
    finally:
        exchange._MOST_KEYS = 256
    return True


def test_keys_are_forgotten_by_all_ranks_at_once(ranks: RankPool) -> None:
    assert ranks(2, more_keys_than_are_kept) == [True, True]


def nothing_shared_between_calls() -> bool:
    """Notes and sparse tensors that the receiver changes; heads that change, grow and come back."""
    carry = exchange.Exchange()
    for call in range(3):
        sparse = torch.eye(2).to_sparse().coalesce()
        for rank, part in enumerate(carry(payload.Part([torch.ones(2), sparse], {"list": [world.rank()]}), CPU)):
            assert part.note == {"list": [rank]}, call
            assert part.tensors[1].to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]], call
            part.note["list"].append(0)
            part.tensors[1].values().zero_()
    for note in ((1, None), (True, None), (1.0, "x" * 3000), (0.0,), (-0.0,), (1, None)):
        for part in carry(payload.Part([torch.ones(1)], note), CPU):
            assert repr(part.note) == repr(note)
    return True


def under_way() -> list[float]:
    """Exchanges that overlap with others and with collectives, one that is dropped, and one in inference mode."""
    beside = exchange.Exchange(collectives.group_beside())
    rank = float(world.rank())
    first = beside.start(payload.Part([torch.full((3,), rank)]), CPU)
    beside.start(payload.Part([torch.full((9000,), -1.0)]), CPU)
    second = beside.start(payload.Part([torch.full((70000,), rank + 10)]), CPU)
    total = torch.ones(1)
    dist.all_reduce(total)
    with torch.inference_mode():
        third = beside.start(payload.Part([torch.full((2,), rank + 20)]), CPU)
        parts = [*first.wait(), *second.wait(), *third.wait()]
    assert not any(tensor.is_inference() for part in parts for tensor in part.tensors)
    assert all(len(set(part.tensors[0].tolist())) == 1 for part in parts)
    return [total.item(), *(part.tensors[0][-1].item() for part in parts)]


def test_what_is_sent_is_read_anew_where_it_may_change(ranks: RankPool) -> None:
    assert ranks(2, nothing_shared_between_calls) == [True, True]


def test_exchanges_overlap(ranks: RankPool) -> None:
    assert ranks(2, under_way) == [[2.0, 0.0, 1.0, 10.0, 11.0, 20.0, 21.0]] * 2


def by_the_devices_route(empty: bool) -> bool:
    """What `start` does with CUDA tensors, on the CPU: the heads and the rest travel first, the data by itself."""
    rows = 0 if empty else 2 + world.rank()
    tensors = [torch.arange(rows), torch.eye(2).to_sparse(), torch.rand(rows, 0), torch.arange(3.0 * rows).view(3, -1)]
    head, data, rest = payload.packed(payload.Part(tensors, ["note", world.rank()]))
    carry = exchange.Exchange()
    payloads = carry._receive(carry._send(head, rest, None), None)
    parts = exchange._gather_device(payloads, data, CPU)
    for rank, part in enumerate(parts):
        rows = 0 if empty else 2 + rank
        assert part.note == ["note", rank]
        assert part.tensors[0].tolist() == list(range(rows))
        assert part.tensors[1].to_dense().sum() == 2
        assert part.tensors[2].shape == (rows, 0)
        assert torch.equal(part.tensors[3], torch.arange(3.0 * rows).view(3, -1))
    return len(parts) == world.world_size()


@pytest.mark.parametrize("empty", [False, True])
def test_tensors_of_a_device_travel_by_themselves(ranks: RankPool, empty: bool) -> None:
    assert ranks(2, by_the_devices_route, empty) == [True, True]


def sparse_and_shared() -> bool:
    matrix = torch.eye(2).to_sparse() * (world.rank() + 1)
    parts = exchange.Exchange()(payload.Part([matrix, torch.ones(1)]), CPU)
    assert [part.tensors[0].to_dense()[0, 0].item() for part in parts] == [1.0, 2.0]
    values = [
        torch.full((2, 2), float(world.rank())).t(),
        torch.tensor(world.rank()),
        torch.zeros(0),
        torch.rand(3) > 2,
    ]
    leaf = torch.zeros(2, requires_grad=True)
    version = leaf._version
    collectives.broadcast_coalesced([*values, leaf])
    assert leaf._version == version
    return values[0].sum().item() == 0 and values[1].item() == 0


def test_sparse_tensors_and_broadcasts(ranks: RankPool) -> None:
    assert ranks(2, sparse_and_shared) == [True, True]


def test_nestings_keep_their_kinds() -> None:
    x = torch.ones(2)
    lists: defaultdict[str, Any] = defaultdict(list, a=x)
    value = [Pair(x, None), {"k": (x, 3)}, OrderedDict(z=x), lists, Fields(x), "text", {1, 2}]
    doubled = nesting.map_tensors(lambda tensor: tensor * 2, value)
    assert [type(item) for item in doubled] == [type(item) for item in value]
    assert doubled[3].default_factory is list
    assert doubled[4].name == "x"
    assert all(tensor.tolist() == [2.0, 2.0] for tensor in nesting.tensors(doubled))
    assert len(nesting.tensors(value)) == 5
    assert value[4].rows is x


def test_scattering_follows_data_parallel() -> None:
    x, scalar, fields = torch.arange(8.0).view(4, 2), torch.tensor(1.0), Fields(torch.ones(4))
    value = (x, [Pair(x, "s"), {"k": x}], scalar, fields, [], None)
    assert nesting.count_chunks(value, 3, 0) == 2
    assert nesting.count_chunks((scalar, "text", []), 3, 0) == 3
    assert nesting.count_chunks((x, x[:1]), 3, 0) == 1
    cut = nesting.take_chunk(value, lambda tensor: tensor[:2])
    assert cut[1][0].left.shape == (2, 2)
    assert cut[1][0].right == "s"
    assert cut[1][1]["k"].shape == (2, 2)
    assert cut[2] is scalar
    assert cut[3] is fields, "shared, as by nn.DataParallel"
    assert [tensor.shape[0] for tensor in nesting.batch_tensors(value)] == [4, 4, 4]


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(0, 40), parts=st.integers(1, 9))
def test_chunks_are_torchs(rows: int, parts: int) -> None:
    x = torch.empty(rows, 2)
    chunks = [len(chunk) for chunk in x.chunk(parts)]
    sizes = nesting.chunk_sizes(rows, parts)
    assert sizes[: len(chunks)] == chunks
    assert not any(sizes[len(chunks) :])
    assert nesting.count_chunks(x, parts, 0) == len(chunks)


def outputs_on_one_device(dim: int) -> Any:
    """A gather by itself, with gradients, where only the first ranks have rows."""
    own = torch.full((2, 2), world.rank() + 1.0, requires_grad=True)
    ran = world.rank() < 2
    whole = outputs.gather_outputs({"out": own * 2} if ran else None, exchange.Exchange(), 2, dim)["out"]
    (whole * torch.arange(float(whole.numel())).view(whole.shape)).sum().backward()
    return whole.tolist(), None if own.grad is None else own.grad.tolist()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gathered_gradients_go_back_to_their_rank(ranks: RankPool, dim: int) -> None:
    results = ranks(3, outputs_on_one_device, dim)
    parts = [torch.full((2, 2), 2.0), torch.full((2, 2), 4.0)]
    expected = torch.cat(parts, dim)
    slopes = torch.arange(8.0).view(expected.shape).chunk(2, dim)
    for rank, (whole, grad) in enumerate(results):
        assert whole == expected.tolist()
        assert grad == (None if rank == 2 else (slopes[rank] * 2 * 3).tolist())
