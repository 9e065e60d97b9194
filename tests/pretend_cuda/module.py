"""What stands in for the functions of `torch._C` behind `torch.cuda`, which then runs as it is installed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch

from .build import PretendCudaUnavailableError
from .pretend_devices import Devices, Properties

_USERS = ("torch.cuda", "torch.cuda.memory", "torch.cuda.random", "torch.cuda.streams", "torch.cuda.graphs")


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for what waits for the device or counts its memory: neither is pretended."""


class Stream(torch.Stream):
    """Stands in for `torch.cuda.Stream`: the one stream that a pretend device has."""

    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> Stream:
        """As `torch.cuda.Stream` takes it."""
        index = named.get("device_index")
        if index is None:
            index = torch.cuda._utils._get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("cuda", index))

    @property
    def cuda_stream(self) -> int:
        """The handle; the default stream's is 0."""
        return 0

    wait_event = wait_stream = _nothing

    @property
    def _as_parameter_(self) -> int:
        return self.cuda_stream


def install(devices: Devices, library: ctypes.CDLL) -> None:
    """Put the stand-ins where `torch.cuda` looks for them, and where storages and process groups are made."""
    _install_storages()
    major, minor, patch = torch._C._cudnn.getCompileVersion()  # type: ignore[attr-defined,unused-ignore]
    library.pretend_set_cudnn(ctypes.c_long(major * 10000 + minor * 100 + patch))
    for name, function in {**_device_functions(devices), **_stream_functions(devices)}.items():
        _replace(name, function)
    cuda = import_module("torch.cuda")
    _set(cuda, _device_count_nvml=devices.count, _cached_device_count=None, _is_in_bad_fork=lambda: devices.bad_fork)
    _set(cuda, Stream=Stream)
    _set(import_module("torch.cuda.streams"), Stream=Stream)


def _device_functions(devices: Devices) -> dict[str, Callable[..., Any]]:
    def init() -> None:
        devices.initialize()
        # What the function of this name in torch sets in the module, for Python's side to use.
        _set(
            import_module("torch.cuda"),
            default_generators=devices.generators(),
            _get_device_properties=Properties,
            has_magma=False,
            has_half=True,
        )

    return {
        "init": init,
        "getDevice": devices.current,
        "setDevice": devices.set_current,
        "exchangeDevice": devices.exchange,
        "maybeExchangeDevice": devices.exchange,
        "getDeviceCount": devices.freeze,
        "isInBadFork": lambda: devices.bad_fork,
        "synchronize": _nothing,
    }


def _stream_functions(devices: Devices) -> dict[str, Callable[..., Any]]:
    kind = 1  # `c10::DeviceType::CUDA`

    def stream(device: int) -> tuple[int, int, int]:
        return 0, device if device >= 0 else devices.current(), kind

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        devices.set_current(device_index)

    return {
        "getCurrentStream": stream,
        "getDefaultStream": stream,
        "getCurrentRawStream": lambda device: 0,
        "setStream": set_stream,
        "isCurrentStreamCapturing": lambda: False,
    }


def _replace(name: str, function: Callable[..., Any]) -> None:
    """Replace `torch._C._cuda_<name>`, also where Python modules have kept it under a name of their own."""
    before = getattr(torch._C, f"_cuda_{name}", None)
    setattr(torch._C, f"_cuda_{name}", function)
    for module in [sys.modules[user] for user in _USERS if user in sys.modules]:
        for key in [key for key, value in vars(module).items() if value is before and before is not None]:
            setattr(module, key, function)


def _set(module: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(module, name, value)


def install_collectives() -> None:
    """Make the backend `nccl` of `torch.distributed` create gloo's; what is asked of the group stays as it is."""
    from torch.distributed import distributed_c10d as c10d

    backends: Any = c10d.Backend
    if not hasattr(backends, "_ensure_backend_registered") or not hasattr(c10d, "_create_gloo_process_group"):
        raise PretendCudaUnavailableError(
            f"pretend CUDA doesn't know the torch.distributed of {torch.__version__}; it was made for 2.15"
        )
    backends._ensure_backend_registered("nccl")
    known = backends._plugins
    if "NCCL" not in known or not c10d.is_gloo_available():
        raise PretendCudaUnavailableError("pretend CUDA: torch.distributed has no NCCL to stand in for, or no gloo")

    def create(options: Any, backend_options: object | None) -> Any:
        return c10d._create_gloo_process_group(options, None)

    known["NCCL"] = known["NCCL"]._replace(creator_fn=create, extended_api=True)

    class ProcessGroupNCCL:
        """What is made by hand: gloo's, with the arguments of NCCL's."""

        class Options:
            pass

        def __new__(cls, store: Any, rank: int, size: int, options: object) -> Any:
            return c10d.ProcessGroupGloo(store, rank, size, timedelta(days=1))

    for module in (c10d, sys.modules["torch.distributed"]):
        _set(module, ProcessGroupNCCL=ProcessGroupNCCL)


def _install_storages() -> None:
    """Let `torch.UntypedStorage` take its memory on a pretend device from a tensor, and grow as a tensor's does."""
    storage: Any = torch.UntypedStorage
    new, resize = storage.__new__, storage.resize_

    def make(cls: Any, *args: Any, device: Any = None, **named: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return new(cls, *args, **({} if device is None else {"device": device}), **named)
        size = args[0] if args else 0
        if isinstance(size, int):
            return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(size), dtype=torch.uint8, device=device).untyped_storage()

    def grow(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        if size < self.nbytes():
            raise NotImplementedError("pretend CUDA: a storage on its devices can't be made smaller")
        torch.empty(0, dtype=torch.uint8, device=self.device).set_(self).resize_(size)
        return self

    storage.__new__ = staticmethod(make)
    storage.resize_ = grow
