"""Nested values, and how `nn.DataParallel` cuts them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import torch
from dp2ddp_runtime.base import nesting
from hypothesis import given, settings
from hypothesis import strategies as st

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Fields:
    rows: torch.Tensor
    name: str = "x"


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
    assert nesting.count_chunks((scalar, "text", []), 3, 0) is None
    assert nesting.count_chunks((x, x[:1]), 3, 0) == 1
    cut = nesting.take_chunk(value, lambda tensor: tensor[:2])
    assert cut[1][0].left.shape == (2, 2)
    assert cut[1][0].right == "s"
    assert cut[1][1]["k"].shape == (2, 2)
    assert cut[2] is scalar
    assert cut[3] is fields, "shared, as by nn.DataParallel"


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(0, 40), parts=st.integers(1, 9))
def test_chunks_are_torchs(rows: int, parts: int) -> None:
    x = torch.empty(rows, 2)
    chunks = [len(chunk) for chunk in x.chunk(parts)]
    sizes = nesting.chunk_sizes(rows, parts)
    assert sizes[: len(chunks)] == chunks
    assert not any(sizes[len(chunks) :])
    assert nesting.count_chunks(x, parts, 0) == len(chunks)
