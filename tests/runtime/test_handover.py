"""What is handed to threads and other processes before anybody has looked at it: an error that says what to do."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import warnings
from typing import Any

import pytest
import torch
from deferring import all_large, batch, data, deferred
from rank_pool import on_ranks
from torch import nn


@on_ranks(2, each=True)
def test_a_batch_in_a_thread_says_what_to_do() -> bool:
    with all_large():
        (x, _), (whole_x, _) = batch(), data()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match=r"is in a thread of its own, .*`x = x.clone\(\)`"):
            pool.submit(lambda: x.sum().item()).result(30)
        x = x.clone()
        assert pool.submit(lambda: x.sum().item()).result(30) == whole_x.sum().item()
    return type(x) is torch.Tensor


def _into(results: Any, x: torch.Tensor) -> None:
    try:
        results.put(x.sum().item())
    except RuntimeError as error:
        results.put(str(error))


@on_ranks(2, each=True)
def test_a_batch_in_another_process_says_what_to_do() -> bool:
    context = multiprocessing.get_context("fork")
    (x, _), (whole_x, _) = batch(), data()
    found = []
    for _ in range(2):
        results = context.SimpleQueue()
        process = context.Process(target=_into, args=(results, x))
        process.start()
        found.append(results.get())
        process.join()
        x = x.clone()
    assert "in another process" in str(found[0]), found
    return found[1] == whole_x.sum().item()


@on_ranks(2, each=True)
def test_what_is_traced_has_the_batch_as_its_input() -> bool:
    """As `SummaryWriter.add_graph` does with a first batch: of one that is whole; another one would be a constant."""
    warnings.simplefilter("ignore")  # of what is to come in place of torch.jit
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 3)).eval().requires_grad_(False)
    other = torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    x = deferred(torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(1)))
    with pytest.raises(RuntimeError, match=r"test_handover.py:\d+ traces with a loader's batch, .* `batch.clone\(\)`"):
        torch.jit.trace(net, x)
    assert torch.equal(torch.jit.trace(net, x.clone())(other), net(other))
    return True
