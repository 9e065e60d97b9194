"""What tests of loaders load: data sets, collate functions, and batches as what a script can see of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from dp2ddp_runtime.rows import Rows
from torch.utils.data import Dataset


class Sized(Dataset[Any]):
    """A data set of so many samples."""

    size = 11

    def __len__(self) -> int:
        return self.size


class Numbers(Sized):
    """Sample `i` is the number `i`, with noise if `noisy`."""

    def __init__(self, size: int, noisy: bool = False) -> None:
        self.size, self.noisy = size, noisy

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand(()).item() if self.noisy else index


class Noted(Sized):
    """Sample `i` is the number `i`. Notes what is loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)
        return torch.tensor(float(index))


def longest(batch: list[Any]) -> Any:
    """A `collate_fn` whose rows nobody can tell apart."""
    return len(batch), batch


def is_rows(batch: Any) -> bool:
    """Whether this rank has loaded its rows alone."""
    return (
        any(isinstance(each, Rows) for each in batch) if isinstance(batch, (list, tuple)) else isinstance(batch, Rows)
    )


def described(value: Any) -> Any:
    """What the script can see of a batch, but for its tensors' class."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), repr(value.tolist())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return type(value).__name__, described(vars(value))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(item) for item in value]
    return type(value).__name__, value
