"""What is written down of optimizers, loaders, generators and tensors: as numbers and names."""

from __future__ import annotations

import functools
import gc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from dp2ddp_runtime import codec
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, IterableDataset

_NOT_TOLD = ("params", "param_names")
_SUMS = 8
_ROW = 4099  # entries of a sum: prime, so that no image's rows begin anew with it


def sketch(tensor: torch.Tensor) -> list[float]:
    """What is kept of a parameter, a few numbers: a checksum of its bytes, its norm, and sums with random signs.

    The mean square of the differences of two tensors' sums is about the squared norm of the tensors' difference (Alon,
    Matias, Szegedy: The space complexity of approximating the frequency moments, 1996; `compare.steps` takes it).
    """
    dense = tensor.detach().cpu().contiguous()
    flat = (torch.view_as_real(dense) if dense.is_complex() else dense).flatten().double()
    return [zlib.crc32(codec.memory(dense)), *_signed_sums(flat, _SUMS)]


def sums(tensor: torch.Tensor) -> list[float]:
    """A tensor's norm, and a sum of its entries with random signs, which depends on their order.

    In float32 for less precise ones, else in their precision: a conversion would take longer than all else.
    """
    flat = (torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()).flatten()
    if not flat.is_floating_point():
        flat = flat.double()
    return _signed_sums(flat.float() if flat.dtype.itemsize < 4 else flat, 1)


def _signed_sums(flat: torch.Tensor, count: int) -> list[float]:
    """The norm, and `count` sums with random signs, those of an entry's row times those of its place in the row."""
    with torch._C.DisableTorchFunctionSubclass():  # a class of its own has a say in what is done with its tensors
        flat = flat.view(-1)
    rows = flat.numel() // _ROW
    whole, rest = flat[: rows * _ROW].view(rows, _ROW), flat[rows * _ROW :]
    of_rows, of_places = (_signs(size, count).type_as(flat) for size in (rows, _ROW))
    found = ((whole @ of_places) * of_rows).sum(0) + rest @ of_places[: rest.numel()]
    return [float(torch.linalg.vector_norm(flat)), *found.tolist()]


@functools.cache
def _signs(rows: int, count: int) -> torch.Tensor:
    """Random signs of shape (rows, count); the same in each process."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(0, 2, (rows, count), generator=generator, device="cpu") * 2 - 1


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Those of all its groups, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def gradients(optimizer: Optimizer) -> list[float | None]:
    """The norm of each parameter's gradient; None for one that has none."""
    grads = (param.grad for param in parameters(optimizer))
    return [None if grad is None else norm(_dense(grad)) for grad in grads]


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether a parameter has a gradient already that isn't nothing."""
    return any(bool(_dense(param.grad).any()) for param in parameters(optimizer) if param.grad is not None)


def norm(tensor: torch.Tensor) -> float:
    """In float64."""
    return float(torch.linalg.vector_norm(tensor.detach().double()))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, also in lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.detach().coalesce().values() if grad.is_sparse else grad.detach()


def settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What each of the optimizer's groups is: its optimizer's class, how many parameters it has, and how many of them
    are trained; and what it is set to: learning rate, weight decay, momentum, ..."""
    return [
        {
            "class": type(optimizer).__name__,
            "parameters": len(group["params"]),
            "trained": sum(param.requires_grad for param in group["params"]),
            **{
                name: plain(value, lambda each: repr(type(each)))
                for name, value in group.items()
                if name not in _NOT_TOLD
            },
        }
        for group in optimizer.param_groups
    ]


def of_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    """What a loader is made with."""
    data: Any = loader.dataset
    return {
        "data set": type(data).__name__,
        "samples": None if isinstance(data, IterableDataset) or not hasattr(data, "__len__") else len(data),
        "sampler": type(loader.sampler).__name__,
        "batch size": loader.batch_size,
        "drop_last": loader.drop_last,
    }


def plain(value: Any, otherwise: Callable[[Any], str] = repr) -> Any:
    """A batch's sample indices, or a setting, for JSON; what has no such form (a custom sampler's key) as a text."""
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item, otherwise) for item in value]
    return value if isinstance(value, (int, float, str, type(None))) else otherwise(value)


def names(optimizer: Optimizer) -> list[str]:
    """The class of the largest module (of all live ones: no optimizer leads there) that holds each parameter,
    and what it is called there, without any `module.`: `Net.conv1.weight`."""
    params = parameters(optimizer)
    wanted = {id(param) for param in params}
    found: dict[int, str] = {}
    # By type(), not isinstance(): some objects import half a package when asked for their class.
    modules = (each for each in gc.get_objects() if issubclass(type(each), nn.Module) and "_modules" in each.__dict__)
    for module in sorted(modules, key=lambda each: -sum(1 for _ in each.modules())):
        kind = type(getattr(module, "module", module)).__name__
        for name, param in module.named_parameters():
            if id(param) in wanted:
                found.setdefault(id(param), ".".join([kind, *(part for part in name.split(".") if part != "module")]))
        if len(found) == len(wanted):
            break
    return [found.get(id(param), f"parameter {index}") for index, param in enumerate(params)]
