"""The wrapped model does what `nn.DataParallel` does: compared with the oracle, scenario by scenario."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dp2ddp_runtime import model as models
from rank_pool import RankPool
from scenarios import SCENARIOS, Tensors, run_all

from dp2ddp.oracle import EmulatedDataParallel

_results: dict[int, list[dict[str, Tensors]]] = {}


def run_gathered() -> dict[str, Tensors]:
    return run_all(lambda module, dim=0: models.wrap_model(module, gather=True, dim=dim))


def results(ranks: RankPool, n: int) -> list[dict[str, Tensors]]:
    if n not in _results:
        emulated = run_all(lambda module, dim=0: EmulatedDataParallel(module, dim=dim, n=n))
        _results[n] = [emulated, *ranks(n, run_gathered)]
    return _results[n]


def assert_same(got: Any, expected: Any, what: str, exact: bool) -> None:
    if expected is None or got is None:
        assert got is expected, what
        return
    assert got.shape == expected.shape, what
    assert got.dtype == expected.dtype, what
    tolerance = {} if got.dtype in (torch.bfloat16, torch.half) else {"rtol": 1e-10, "atol": 1e-12}
    if exact or not (got.is_floating_point() or got.is_complex()):
        assert torch.equal(got, expected), what
    else:
        torch.testing.assert_close(got, expected, **tolerance, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("name", list(SCENARIOS))
@pytest.mark.parametrize("n", [2, 3])
def test_gathered_is_data_parallel(ranks: RankPool, n: int, name: str) -> None:
    expected, *per_rank = (result[name] for result in results(ranks, n))
    for index, value in enumerate(expected):
        assert_same(per_rank[0][index], value, f"{name}[{index}]", exact=False)
        for other in per_rank[1:]:
            assert_same(other[index], per_rank[0][index], f"{name}[{index}] on other ranks", exact=True)
