"""Nested values: what they are made of stays what it is."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import torch
from dp2ddp_runtime import nesting

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Fields:
    rows: torch.Tensor
    name: str = "x"


def test_nestings_keep_their_kinds() -> None:
    x = torch.ones(2)
    lists: defaultdict[str, Any] = defaultdict(list, a=x)
    value = [Pair(x, None), {"k": (x, 3)}, OrderedDict(z=x), lists, Fields(x), "text", {1, 2}]
    doubled = nesting.nested(lambda tensor: tensor * 2, value)
    assert [type(item) for item in doubled] == [type(item) for item in value]
    assert doubled[3].default_factory is list
    assert doubled[4].name == "x"
    assert all(tensor.tolist() == [2.0, 2.0] for tensor in nesting.tensors(doubled))
    assert len(nesting.tensors(value)) == 5
    assert value[4].rows is x
