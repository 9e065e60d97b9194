"""The global Mersenne Twisters of `random` and NumPy: what state they are in, and how to put them into another.

Random streams change at each batch and each forward, but most scripts draw from neither there. `getstate` makes 625
Python integers, which costs more between two layers (whose data has filled the processor's cache) than all other
generators together. So the 2500 bytes behind a generator are compared first; the long way is only taken if it moved.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, Callable, NamedTuple

try:
    import numpy as np
except ImportError:  # torch works without NumPy, and so does this runtime
    np = None  # type: ignore[assignment]

_WORDS = 625  # 624 of the generator's, and its position in them
_as_words = struct.Struct(f"{_WORDS}I").pack


class State(NamedTuple):
    """What a generator's `getstate` gives, and the same as raw bytes where these say it all."""

    full: Any
    raw: bytes | None
    cached: float | None = None
    """A normally distributed number that was drawn along with the last one, outside of the raw bytes."""

    def same(self, other: State) -> bool:
        """Whether both are the same state."""
        if self.raw is not None and other.raw is not None:
            return self.raw == other.raw and self.cached == other.cached
        return _same(self.full, other.full)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    equal = one == other
    return bool(equal if np is None else np.all(equal))


class _Memory:
    """Where a generator's words lie."""

    size = _WORDS * 4

    def __init__(self, address: int) -> None:
        # A view, because calls by way of ctypes take several times as long.
        self._view = memoryview((ctypes.c_char * self.size).from_address(address)).cast("B")

    def read(self) -> bytes:
        return self._view.tobytes()

    def write(self, raw: bytes) -> None:
        self._view[:] = raw


class _Python:
    """The generator behind the functions of `random`."""

    def __init__(self) -> None:
        self._generator: Any = random._inst
        # CPython's RandomObject: the object's head, `int index`, `uint32_t state[624]`.
        start = object.__basicsize__
        known = sys.implementation.name == "cpython" and random.Random.__basicsize__ >= start + _Memory.size
        memory = _Memory(id(self._generator) + start)
        self._memory = memory if known and memory.read() == self.raw(random.getstate()) else None
        self._held: State | None = None  # what it held when last looked at

    @staticmethod
    def raw(full: Any) -> bytes:
        _, (*words, index), _ = full
        return _as_words(index, *words)

    def capture(self) -> State:
        if self._memory is None:
            return State(random.getstate(), None)
        raw, cached = self._memory.read(), self._generator.gauss_next
        held = self._held
        if held is None or held.raw != raw or held.cached != cached:
            held = self._held = State(random.getstate(), raw, cached)
        return held

    def restore(self, state: State) -> None:
        if self._memory is None or state.raw is None:
            random.setstate(state.full)
            return
        self._memory.write(state.raw)
        self._generator.gauss_next = state.cached
        self._held = state


class _Numpy:
    """The generator behind the functions of `numpy.random`: a Mersenne Twister, unless a script sets another one."""

    def __init__(self) -> None:
        self._state: Any = getattr(np.random.mtrand, "_rand", None)  # stays the same for good
        self._bits: Any = self  # what was looked at last; nothing yet
        self._memory: _Memory | None = None
        self._held: State | None = None

    def _look(self) -> None:
        """Find the memory again if another generator was set."""
        bits = getattr(self._state, "_bit_generator", None)
        if bits is self._bits:
            return
        self._bits, self._memory, self._held = bits, None, None
        full: Any = np.random.get_state()
        if bits is not None and isinstance(full, tuple):  # another kind's state is a dict
            memory = _Memory(bits.ctypes.state_address)
            self._memory = memory if memory.read() == self.raw(full) else None

    @staticmethod
    def raw(full: Any) -> bytes:
        return bytes(full[1].tobytes()) + int(full[2]).to_bytes(4, sys.byteorder)

    def capture(self) -> State:
        self._look()
        # A cached normal number can be used up without a trace in the raw bytes, so then these don't say it all.
        if self._memory and self._held and self._held.raw is not None and self._memory.read() == self._held.raw:
            return self._held
        full: Any = np.random.get_state()
        self._held = State(full, self._memory.read() if self._memory and not full[3] else None)
        return self._held

    def restore(self, state: State) -> None:
        self._look()
        held, self._held = self._held, state
        # A draw of a normal number since `capture` would have moved the generator: then take the long way.
        if self._memory and held and held.raw and state.raw and self._memory.read() == held.raw:
            self._memory.write(state.raw)
        else:
            np.random.set_state(state.full)


def seed(value: int) -> None:
    """Seed both generators, NumPy's with the 32 bits it takes."""
    random.seed(value)
    if np is not None:
        np.random.seed(value % 2**32)


def python_seeded(seed: int) -> State:
    """The state that `random.seed(seed)` gives."""
    full = random.Random(seed).getstate()
    return State(full, _Python.raw(full))


def numpy_seeded(seed: int) -> State | None:
    """The state that `np.random.seed(seed % 2**32)` gives; None without NumPy."""
    if np is None:
        return None
    full: Any = np.random.RandomState(seed % 2**32).get_state()
    return State(full, _Numpy.raw(full))


_python = _Python()
_numpy = _Numpy() if np is not None else None

capture_python: Callable[[], State] = _python.capture
restore_python: Callable[[State], None] = _python.restore


def capture_numpy() -> State | None:
    """NumPy's state; None without NumPy."""
    return None if _numpy is None else _numpy.capture()


def restore_numpy(state: State | None) -> None:
    """Put NumPy's generator into `state`."""
    if _numpy is not None and state is not None:
        _numpy.restore(state)
