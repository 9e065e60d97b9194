"""Which devices there are, which of them is current, and whether a process may use them."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch


class Devices:
    """The pretend devices of this process.

    Args:
        library: the native half, which knows each thread's current device.
        devices: how many the machine has; `CUDA_VISIBLE_DEVICES` may show fewer.
    """

    def __init__(self, library: ctypes.CDLL, devices: int) -> None:
        self._library = library
        self._devices = devices
        self._frozen: int | None = None
        self.bad_fork = False
        os.register_at_fork(after_in_child=self._forked)
        library.pretend_set_count(self._visible())

    def count(self) -> int:
        """How many are visible, as NVML counts them: by the environment, also when CUDA has read it before."""
        return self._visible()

    @property
    def is_fixed(self) -> bool:
        """Whether CUDA has read the environment."""
        return self._frozen is not None

    def freeze(self) -> int:
        """How many CUDA sees: what the environment said when it was asked first."""
        if self._frozen is None:
            self._frozen = self._visible()
            self._library.pretend_set_count(self._frozen)
        return self._frozen

    def initialize(self) -> None:
        """What CUDA does at its first use.

        Raises:
            RuntimeError: there are no devices.
        """
        if not self.freeze():
            raise RuntimeError("No CUDA GPUs are available")

    def current(self) -> int:
        """The current device of this thread: 0 when it starts."""
        return int(self._library.pretend_device())

    def set_current(self, index: int) -> None:
        """Make a device the current one of this thread; a negative index changes nothing."""
        if index >= 0:
            self.check(index)
            self._library.pretend_set_device(index)

    def exchange(self, index: int) -> int:
        """`set_current`; gives the one before."""
        before = self.current()
        self.set_current(index)
        return before if index >= 0 else -1

    def check(self, index: int) -> None:
        """Raise what CUDA raises where there is no device `index`."""
        if index >= self.freeze():
            raise torch.AcceleratorError(
                "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
            )

    def generators(self) -> tuple[torch.Generator, ...]:
        """The devices' default generators: the first that are made of each."""
        return tuple(torch.Generator(f"cuda:{index}") for index in range(self.freeze()))

    def _visible(self) -> int:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        if shown is None:
            return self._devices
        count = 0
        for entry in shown.split(","):
            known = entry.strip().isdigit() and int(entry) < self._devices
            if not known:  # CUDA stops at the first that it doesn't know
                break
            count += 1
        return count

    def _forked(self) -> None:
        self.bad_fork = self._frozen is not None


class Properties:
    """What `torch.cuda.get_device_properties` tells of a pretend device: a current GPU's usual numbers."""

    name = "Pretend CUDA"
    major, minor = 9, 0
    total_memory = 16 << 30
    multi_processor_count = 1

    def __init__(self, index: int) -> None:
        self.uuid: Any = f"00000000-0000-0000-0000-{index:012d}"
