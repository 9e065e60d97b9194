"""A stand-in for `torch.cuda` on machines without a GPU: N devices, all of which are the CPU.

A script that says `.cuda()`, `"cuda:0"` or `torch.device("cuda")` goes on as on a GPU machine: a `torch.device` keeps
the type that the script gave it, and whatever is to be put there is put on the CPU.

What `tensor.is_cuda` answers isn't followed tensor by tensor: from the first time on that the script puts anything on a
CUDA device, all tensors say yes. A converted script and its original then agree on every guard of that kind, and a
script that is told to stay on the CPU (`--no-cuda`) still finds it there.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_KEPT_WHERE_IT_IS = {Tensor.cuda, Tensor.pin_memory}
_ASKS_WHERE = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_TAKE_FLOATS = {torch.tensor, torch.as_tensor}  # of the dtype that the data has
_KEEP_FLOAT32 = {"torch.amp.grad_scaler"}  # its scale is float32, whatever the gradients are

_WIDER: dict[Any, Any] = {
    torch.float32: torch.float64,
    "torch.FloatTensor": "torch.DoubleTensor",
    "torch.cuda.FloatTensor": "torch.DoubleTensor",
}


def is_cuda(place: Any) -> bool:
    """Whether `place` is what a script calls a CUDA device: a `torch.device`, or `"cuda"`, `"cuda:1"`."""
    if isinstance(place, torch.device):
        return place.type == "cuda"
    return isinstance(place, str) and (place == "cuda" or place.startswith("cuda:"))


_in_use = False  # whether the script has put anything on a CUDA device


def put_to_use() -> None:
    """Note that the script has put something on a CUDA device."""
    global _in_use
    _in_use = True


def asked_by_script(caller: types.FrameType) -> bool:
    """Whether the script, or a library of its, is what asks; not torch, nor this package or the runtime."""
    return not caller.f_globals.get("__name__", "").startswith(("torch.", "dp2ddp"))


class OnCPU(TorchFunctionMode):
    """While active (one a process), torch's functions take CUDA devices for the CPU and, if asked, float32 for float64.

    Args:
        cuda: take CUDA devices for the CPU.
        float64: what a script makes float32 explicitly (`.float()`, data of NumPy's float32) becomes float64.
    """

    def __init__(self, cuda: bool, float64: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self.cuda = cuda
        self.float64 = float64
        if float64:
            _widen()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.cuda:
            if func == _ASKS_WHERE:
                return _in_use and asked_by_script(sys._getframe(1))
            if func in _KEPT_WHERE_IT_IS:
                if func is Tensor.cuda:
                    put_to_use()
                return args[0]
            args, kwargs = _moved(func, args, kwargs)
        if not self.float64 or sys._getframe(1).f_globals.get("__name__") in _KEEP_FLOAT32:
            return func(*args, **kwargs)
        if func is Tensor.float:
            func = Tensor.double
        args, kwargs = _widened(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in _TAKE_FLOATS and result.dtype == torch.float32:
            return result.double()
        return result


def _moved(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with the CPU for every CUDA device."""
    if func is torch.device:
        return args, kwargs
    if is_cuda(kwargs.get("device")) or (func is not Tensor.to and _is_index(kwargs.get("device"))):
        kwargs = {**kwargs, "device": here()}
    if func is Tensor.to:
        args = tuple(here() if i and (is_cuda(arg) or _is_index(arg)) else arg for i, arg in enumerate(args))
    elif func is Tensor.type:
        args = tuple(untyped(arg) if isinstance(arg, str) else arg for arg in args)
    elif any(type(arg) is torch.device for arg in args):
        args = tuple(here() if is_cuda(arg) else arg for arg in args)
    return args, kwargs


def here() -> torch.device:
    """The CPU, where a script said CUDA."""
    put_to_use()
    return CPU


def untyped(kind: str) -> str:
    """`torch.FloatTensor` for `torch.cuda.FloatTensor`."""
    if kind.startswith("torch.cuda."):
        put_to_use()
    return kind.replace("torch.cuda.", "torch.")


def _is_index(place: Any) -> bool:
    return isinstance(place, int) and not isinstance(place, bool)


def _widened(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with float64 for float32 where a dtype is asked for; not where bytes are read as one."""
    if kwargs.get("dtype") is torch.float32 and func is not torch.frombuffer:
        kwargs = {**kwargs, "dtype": torch.float64}
    if func is Tensor.to or func is Tensor.type:
        args = tuple(_WIDER.get(arg, arg) if isinstance(arg, (str, torch.dtype)) else arg for arg in args)
    return args, kwargs


def _widen() -> None:
    """`torch.from_numpy` and `torch.FloatTensor`, which no `TorchFunctionMode` sees, give float64, too."""
    owners: tuple[Any, ...] = (torch, torch.cuda)
    for owner in owners:
        owner.FloatTensor = torch.DoubleTensor
    original: Callable[[Any], Tensor] = torch.from_numpy

    def from_numpy(ndarray: Any) -> Tensor:
        tensor = original(ndarray)
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    torch.from_numpy = from_numpy
