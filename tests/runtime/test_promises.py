"""The promises P1 to P4 of the design, for what the runtime has to do with them: on the CPU, and on pretend devices.

Functions that ranks run say `.to(device())` where a script says `.cuda()`.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from dp2ddp_runtime import large as large_outputs
from dp2ddp_runtime import loader as loaders
from dp2ddp_runtime import model as models
from dp2ddp_runtime import rows, streams
from loading import Numbers
from nets import Net, Parameters, Wrap, data, data_parallel, device, difference, distance, seeded, snapshot
from rank_pool import RankError, RankPool
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, Subset, TensorDataset, WeightedRandomSampler


class Rolling(Sampler[int]):
    """A sampler that draws from `random` at each sample, and once from its own, unseeded generator."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.own = random.Random()

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        start = self.own.randrange(self.size) if self.size > 30 else 0
        for index in range(self.size):
            yield (start + index + random.randrange(3)) % self.size


class Growing(Sampler[list[int]]):
    """A batch sampler whose batches grow: 1, 2, 3, ... samples."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(21).tolist()
        for size in range(1, 7):
            yield [order.pop() for _ in range(size)]

    def __len__(self) -> int:
        return 6


def kinds(workers: int) -> dict[str, DataLoader[Any]]:
    numbers = Numbers(23)
    shuffled: dict[str, Any] = {"shuffle": True, "num_workers": workers}
    return {
        "in order": DataLoader(numbers, 6, num_workers=workers),
        "shuffled": DataLoader(numbers, 6, **shuffled),
        "generator": DataLoader(numbers, 6, generator=torch.Generator(), **shuffled),
        "drop_last": DataLoader(numbers, 6, drop_last=True, **shuffled),
        "weighted": DataLoader(numbers, 6, sampler=WeightedRandomSampler([1.0, 3.0] * 11, 20)),
        "subset": DataLoader(Subset(numbers, [3, 1, 4, 15, 9, 2, 6]), 5, **shuffled),
        "custom sampler": DataLoader(numbers, 6, sampler=Rolling(23), num_workers=workers),
        "custom batch sampler": DataLoader(numbers, batch_sampler=Growing(), num_workers=workers),
        "torch's batch sampler": DataLoader(numbers, batch_sampler=BatchSampler(Rolling(23), 4, True)),
        "last batch smaller than N": DataLoader(Numbers(13), 6, **shuffled),
        "one by one": DataLoader(Numbers(5), num_workers=workers),
    }


def read_all(workers: int) -> dict[str, Any]:
    """Of each loader two epochs' batches, `len`, and a draw afterwards."""
    found = {}
    for kind, original in kinds(workers).items():
        streams.seed_everything(11)
        loader = loaders.shard_loader(original)
        batches = []
        for epoch in range(2):
            loaders.set_epoch(loader, epoch)
            batches += [batch.to(device()).tolist() for batch in loader]
        found[kind] = batches, len(loader), torch.rand(1).item()
    return found


@pytest.mark.parametrize(
    ("ranks", "n", "workers"),
    [("cpu", 3, 2), ("cuda", 2, 0)],
    indirect=["ranks"],
)
def test_p1_each_batch_is_the_originals(ranks: RankPool, n: int, workers: int) -> None:
    expected = read_all(0)
    for found in ranks(n, read_all, workers):
        for kind, own in found.items():
            assert own == expected[kind], kind


def read_unseeded() -> list[list[int]]:
    random.seed(1)
    loader = loaders.shard_loader(DataLoader(Numbers(40), 8, sampler=Rolling(40)))
    return [batch.to(device()).tolist() for batch in loader]


def test_p1_a_sampler_with_randomness_of_its_own_is_rank_0s(ranks: RankPool) -> None:
    first, second = ranks(2, read_unseeded)
    assert first == second


class Entropic(Sampler[int]):
    """A sampler that asks the system for its order."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(range(40), 40))


def read_mixture() -> None:
    for batch in loaders.shard_loader(DataLoader(Numbers(40), 8, sampler=Entropic())):
        batch.tolist()


def test_p1_a_sampler_that_draws_otherwise_on_each_rank_ends_the_job(ranks: RankPool) -> None:
    """Not a batch is trained on that is a mixture."""
    told = r"the batch that a loader's sampler gives at test_promises.py:\d+ differs between the ranks"
    with pytest.raises(RankError, match=told):
        ranks(2, read_mixture)


def train(wrap: Wrap, steps: int, dtype: torch.dtype) -> list[Parameters]:
    """Training on batches of 16, 16, 16 and 7 rows, shuffled; the parameters and buffers after each step."""
    net = wrap(seeded(lambda: Net(0.5), dtype))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = loaders.shard_loader(DataLoader(TensorDataset(*data(55, dtype)), 16, shuffle=True))
    history: list[Parameters] = []
    while len(history) < steps:
        for x, y in loader:
            x, y = x.to(device()), y.to(device())
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            history.append(snapshot(net))
    return history[:steps]


def train_on_ranks(*args: Any) -> list[Parameters]:
    return train(models.wrap_model, *args)


def train_original(n: int, *args: Any) -> list[Parameters]:
    return train(data_parallel(n), *args)


@pytest.mark.parametrize(
    ("ranks", "n", "dtype"),
    [("cpu", 2, torch.float32), ("cpu", 3, torch.float64), ("cuda", 2, torch.float32)],
    indirect=["ranks"],
)
def test_p2_parameters_are_data_parallels_after_every_step(ranks: RankPool, n: int, dtype: torch.dtype) -> None:
    steps = 40
    results = ranks(n, train_on_ranks, steps, dtype)
    expected = ranks.original(train_original, n, steps, dtype)
    for step in range(steps):
        for result in results[1:]:
            assert difference(result[step], results[0][step]) == 0
        # Bit for bit on two ranks: three sum in another order.
        if n == 2:
            assert difference(results[0][step], expected[step]) == 0, step
        assert distance(results[0][step], expected[step]) <= 1e-12, step


def train_on_clips(wrap: Wrap, large: bool) -> tuple[list[Parameters], list[bool]]:
    """The same on frames of clips, in batches of 8 and 7 clips; and whether a batch was gathered."""
    net = wrap(seeded(lambda: Net(0.5), torch.float64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, y = data(15 * 4, torch.float64)
    loader = loaders.shard_loader(DataLoader(TensorDataset(x.view(15, 4, 1, 8, 8), y[::4]), 8))
    history, gathered = [], []
    with mock.patch.object(large_outputs, "LARGE", 0 if large else 1 << 20), mock.patch.object(rows, "SMALL", 0):
        for clips, labels in (each for _ in range(3) for each in loader):
            frames = clips.view(-1, *clips.shape[2:])
            out = net(frames)
            each_s = out.view(len(clips), 4, -1)
            loss = F.cross_entropy(each_s.mean(1), labels) + each_s.square().mean()
            optimizer.zero_grad()
            (loss + F.cross_entropy(out, labels.unsqueeze(1).repeat(1, 4).view(-1))).backward()
            optimizer.step()
            history.append(snapshot(net))
            gathered.append(not rows.is_sharded(clips))
    return history, gathered


@pytest.mark.parametrize(("n", "large"), [(2, True), (3, False)])
def test_p2_holds_for_rows_that_become_several(ranks: RankPool, n: int, large: bool) -> None:
    expected, _ = train_on_clips(data_parallel(n), large)
    for history, gathered in ranks(n, train_on_clips, models.wrap_model, large):
        assert max(map(distance, history, expected)) <= 1e-12
        # Replicas get as many frames as `torch.chunk` gives them, be that whole clips or not.
        assert gathered == ([False, True] if n == 2 else [True, True]) * 3


class Augmented(Dataset[Any]):
    """Noise from three generators on every sample."""

    def __init__(self) -> None:
        self.x, self.y = data(40, torch.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + float(np.random.randn()) + torch.rand(1).item()
        return self.x[index] + noise, self.y[index], noise


def digest() -> str:
    """Of the states of all generators."""
    on_device = [torch.cuda.get_rng_state().tolist()] if device().type == "cuda" else []
    numpy = [str(part) for part in np.random.get_state()]
    state = (torch.get_rng_state().tolist(), random.getstate(), numpy, on_device)
    return hashlib.sha256(pickle.dumps(state)).hexdigest()


def epochs(workers: int) -> Any:
    net = models.wrap_model(seeded(lambda: Net(0.5), torch.float32))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loader = loaders.shard_loader(DataLoader(Augmented(), 15, shuffle=True, num_workers=workers))
    ends, noises = [], []
    for epoch in range(2):
        loaders.set_epoch(loader, epoch)
        for x, y, noise in loader:
            x, y = x.to(device()), y.to(device())
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            noises.append(noise.tolist())
        ends.append((digest(), [value.tolist() for value in snapshot(net)]))
    with streams.forward:
        own = digest()
    return ends, noises, own


@pytest.mark.parametrize(("ranks", "n", "workers"), [("cpu", 3, 0), ("cuda", 2, 2)], indirect=["ranks"])
def test_p3_ranks_agree_at_the_end_of_each_epoch_and_augment_differently(ranks: RankPool, n: int, workers: int) -> None:
    results = ranks(n, epochs, workers)
    ends = [result[0] for result in results]
    assert all(end == ends[0] for end in ends)
    assert ends[0][0] != ends[0][1]
    assert len({result[2] for result in results}) == n
    drawn = [noise for batch in results[0][1] for noise in batch]
    assert len(set(drawn)) == len(drawn) == 80


def accuracy() -> tuple[int, int, int, float]:
    """As a script computes it: with no word about ranks. And what depends on the order of rows."""
    torch.manual_seed(0)
    net = models.wrap_model(nn.Linear(1, 2))
    seen, correct, ranked, losses = 0, 0, 0, 0.0
    for batch in loaders.shard_loader(DataLoader(Numbers(23), 6, shuffle=True)):
        wide = 2 * batch.to(device())[:, None].repeat(1, 5000)  # too large to travel along with something else
        ranked += sum(place * row for place, row in enumerate(wide[:, 0].tolist()))
        out = net(batch[:, None].float())  # from the host: to move it there is the wrapped model's affair
        batch = batch.to(device())
        seen += len(batch)
        correct += (out.argmax(1) == batch % 2).sum().item()
        losses += F.cross_entropy(out, batch % 2).item() * batch.size(0)
    return seen, correct, ranked, losses / seen


@pytest.mark.parametrize(("ranks", "n"), [("cpu", 3), ("cuda", 2)], indirect=["ranks"])
def test_p4_numbers_are_the_originals(ranks: RankPool, n: int) -> None:
    (expected,) = ranks(1, accuracy)
    assert expected[0] == 23
    assert ranks(n, accuracy) == [pytest.approx(expected, rel=1e-6)] * n
