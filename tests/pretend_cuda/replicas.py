"""torch's own `nn.DataParallel` on pretend devices, and the same as an oracle: replica after replica."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

_module: Any = import_module("torch.nn.parallel.parallel_apply")  # `torch.nn.parallel.parallel_apply` is the function
_lock = threading.RLock()


def install() -> None:
    """Put stand-ins where `torch.nn.parallel.comm` asks C++ to copy between devices."""
    for name, function in {
        "_broadcast": _broadcast,
        "_broadcast_coalesced": _broadcast_coalesced,
        "_scatter": _scatter,
        "_gather": _gather,
    }.items():
        setattr(torch._C, name, function)
    # `comm` adds up without NCCL then, in an order that it says itself.
    nccl: Any = import_module("torch.cuda.nccl")
    nccl.is_available = lambda tensors: False


def _on(tensor: Tensor, index: int) -> Tensor:
    return tensor.to(torch.device("cuda", index) if index >= 0 else "cpu")


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_on(tensor, index) for index in devices]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError(f"all tensors must be on devices[0]: {devices[0]}")
    # The first device has the tensors themselves, as in C++.
    return [list(tensors), *([_on(tensor.detach(), index) for tensor in tensors] for index in devices[1:])]


def _scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Any
) -> list[Tensor]:
    if sizes is not None and sum(sizes) != tensor.size(dim):
        raise RuntimeError(f"given chunk sizes {list(sizes)} don't sum up to the tensor's size {tensor.size(dim)}")
    chunks = tensor.chunk(len(devices), dim) if sizes is None else torch.split_with_sizes(tensor, list(sizes), dim)
    return [_on(chunk, index) for chunk, index in zip(chunks, devices)]


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    index = torch.cuda.current_device() if destination is None else destination
    return torch.cat([_on(tensor, index) for tensor in tensors], dim)


class OracleDataParallel(nn.DataParallel):  # type: ignore[type-arg,unused-ignore]
    """torch's own `nn.DataParallel`, whose replicas run one after the other, each drawing from its own stream.

    Nothing but the order is changed: each replica runs in a thread of its own, as
    torch's `parallel_apply` starts it, and the next one starts when it has ended. Side by side they would race for the
    generators of the CPU, of `random` and of NumPy.
    """

    #: What the forward of replica i is run in: all models share them, as a rank has one.
    streams: ClassVar[Sequence[AbstractContextManager[Any]]] = ()

    def parallel_apply(self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        """torch's own `parallel_apply`, with threads that wait for one another."""
        if len(replicas) == 1:  # torch starts no thread then
            with self._drawing(0):
                return super().parallel_apply(replicas, inputs, kwargs)
        with _lock, _one_by_one(self._drawing):
            return super().parallel_apply(replicas, inputs, kwargs)

    @contextlib.contextmanager
    def _drawing(self, replica: int) -> Iterator[None]:
        from dp2ddp_runtime.streams import Stream  # the runtime asks CUDA for a rank's device when it is imported

        if not self.streams:
            type(self).streams = [Stream(rank=rank) for rank in range(torch.cuda.device_count())]
        with torch.cuda.device(self.device_ids[replica]), self.streams[replica]:
            yield


@contextlib.contextmanager
def _one_by_one(around: Callable[[int], AbstractContextManager[None]]) -> Iterator[None]:
    """Let `parallel_apply` start threads that have ended when it starts the next, with `around(i)` around the i-th."""

    class Thread(threading.Thread):
        def start(self) -> None:
            super().start()
            super().join()

        def run(self) -> None:
            replica: Any = self._args[0]  # type: ignore[attr-defined]
            with around(replica):
                super().run()

    before = _module.threading
    _module.threading = SimpleNamespace(Thread=Thread, Lock=threading.Lock)
    try:
        yield
    finally:
        _module.threading = before
