"""A stand-in for `torch.cuda` on machines without a GPU: N devices, all of which are the CPU.

A `torch.device` keeps the type that the script gave it, and whatever is to be put there is put on the CPU. To scripts
all tensors say that they are on a GPU: a converted script and its original then agree on every guard of that kind.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

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


def on_cpu(place: Any) -> Any:
    """The CPU for what a script calls a CUDA device (a `torch.device`, `"cuda:1"`), `torch.FloatTensor` for
    `torch.cuda.FloatTensor`; all else as it is."""
    if isinstance(place, torch.device):
        return CPU if place.type == "cuda" else place
    if isinstance(place, str):
        return "cpu" if place.partition(":")[0] == "cuda" else place.replace("torch.cuda.", "torch.")
    return place


class _Devices:
    """What the script knows of them: which is current."""

    current: ClassVar[int] = 0


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    """`torch.cuda.device`: a device is the current one meanwhile."""
    before = _Devices.current
    _set_device(device)
    yield
    _Devices.current = before


def _set_device(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    if index is not None and index >= 0:
        _Devices.current = index


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
                return asked_by_script(sys._getframe(1))
            if func is Tensor.get_device and asked_by_script(sys._getframe(1)):
                return _Devices.current
            if func in _KEPT_WHERE_IT_IS:
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
    if func is Tensor.to:
        args = [CPU if type(arg) is int else arg for arg in args]
    if "device" in kwargs:
        kwargs = {**kwargs, "device": CPU if type(kwargs["device"]) is int else on_cpu(kwargs["device"])}
    return tuple(map(on_cpu, args)), kwargs


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


def without_cuda(devices: int) -> None:
    """Make `torch.cuda` say that `devices` devices are there and do what scripts ask of them on the CPU.

    Together with `OnCPU`, which catches the tensors. For the rest of the process.
    """
    for name in dir(torch):
        if name.endswith("Tensor"):  # torch.cuda.FloatTensor and the like
            setattr(torch.cuda, name, getattr(torch, name))
    for name, value in _stand_ins(devices).items():
        setattr(torch.cuda, name, value)
    _replace_functions()
    _mix_on_cpu()
    for message in (".*pin_memory.*no accelerator", ".*CUDA is not available"):
        warnings.filterwarnings("ignore", message=message)


#: What a CPU needn't do, and what it has none of.
_NOTHING = "synchronize empty_cache init manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all "
_NOTHING += "reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction"
_NONE = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached"


def _stand_ins(devices: int) -> dict[str, Any]:
    """What there is in `torch.cuda`, by name."""
    memory = 16 * 2**30
    properties = types.SimpleNamespace(
        name="CPU in place of a GPU", major=8, minor=0, total_memory=memory, multi_processor_count=1
    )
    return {
        # Yes to the script and its libraries; no to torch itself, which would look for the driver.
        "is_available": lambda: asked_by_script(sys._getframe(1)),
        "device_count": lambda: devices,
        "current_device": lambda: _Devices.current,
        "set_device": _set_device,
        "device": on_device,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "mem_get_info": lambda device=None: (memory, memory),
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(devices)],
        # Each its own function: torch._dynamo keeps them in a table, by identity.
        **{name: lambda *args, **kwargs: None for name in _NOTHING.split()},
        **{name: lambda device=None: 0 for name in _NONE.split()},
        "Event": _Event,
        "Stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
    }


class _Done:
    """What is asked of a device: on the CPU it has happened when the call returns."""

    device = CPU

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Whatever it is made with."""

    def query(self) -> bool:
        return True

    def synchronize(self, *args: Any) -> None:
        """Nothing is waited for."""


class _Event(_Done):
    """`torch.cuda.Event`."""

    wait = _Done.synchronize
    _at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return 1000 * (end._at - self._at)


class _Stream(_Done):
    """`torch.cuda.Stream`: the CPU has only one."""

    wait_stream = wait_event = _Done.synchronize

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


def _replace_functions() -> None:
    """Functions outside `torch.cuda` that take a device, and that a `TorchFunctionMode` doesn't see."""
    _take_cpu(torch, "load", 1, "map_location")
    _take_cpu(torch, "set_default_device", 0, "device")
    _take_cpu(torch, "set_default_tensor_type", 0, "t")
    generator = torch.Generator

    class _Kind(type):
        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, generator)

        def __call__(cls, device: Any = "cpu") -> Any:
            return generator(device=on_cpu(device))

    torch.Generator = _Kind("Generator", (), {})  # type: ignore[assignment,misc]
    storages: tuple[Any, ...] = (torch.UntypedStorage, torch.TypedStorage)
    for storage in storages:
        storage.cuda = lambda self, *args, **kwargs: self


def _take_cpu(owner: Any, name: str, position: int, keyword: str, default: Any = None) -> None:
    """Make `owner.name` take CUDA devices in that argument for the CPU; also in a `map_location` that is a dict."""
    original: Callable[..., Any] = getattr(owner, name)

    def moved(place: Any) -> Any:
        return {key: on_cpu(value) for key, value in place.items()} if isinstance(place, dict) else on_cpu(place)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], moved(args[position]), *args[position + 1 :])
        else:
            kwargs[keyword] = moved(kwargs.get(keyword, default))
        return original(*args, **kwargs)

    setattr(owner, name, function)


def _mix_on_cpu() -> None:
    """CUDA's mixed precision: `autocast` in bfloat16, whatever dtype it was given, and a `GradScaler` that scales.

    torch switches both off where it finds no driver. (Before torch 2.3 no `GradScaler` takes a device: it stays off.)
    `torch.cuda.amp`'s classes derive from these.
    """
    if hasattr(torch.amp, "GradScaler"):
        _take_cpu(torch.amp.GradScaler, "__init__", 1, "device", "cuda")
    casting: Any = torch.autocast
    cast = casting.__init__

    def autocast(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        place = on_cpu(device_type)
        cast(self, place, dtype if place == device_type else torch.bfloat16, *args, **kwargs)

    casting.__init__ = autocast
