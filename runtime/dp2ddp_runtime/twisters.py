"""The global Mersenne Twisters of `random` and NumPy: what state they are in, and how to put them into another.

Random streams change at each batch and each forward, but most scripts draw from neither there. `getstate` makes 625
Python integers, which costs more between two layers (whose data has filled the processor's cache) than all other
generators together. So the 2500 bytes behind a generator are read and written directly, where they are found.
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
_words = struct.Struct(f"{_WORDS}I")
_TWISTER = "MT19937"  # NumPy's name for it


class State(NamedTuple):
    """The state of one generator."""

    raw: bytes | None
    """A Mersenne Twister's words, as they lie in memory."""
    cached: float | None = None
    """A normally distributed number that was drawn along with the last one, and is handed out next."""
    other: dict[str, Any] | None = None
    """The state of NumPy's generator where a script has set one that is no Mersenne Twister."""

    def same(self, other: State) -> bool:
        """Whether both are the same state."""
        return self[:2] == other[:2] and _same(self.other, other.other)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other or bool(np.array_equal(one, other))


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
        self._memory = memory if known and memory.read() == self.state_of(random.getstate()).raw else None

    @staticmethod
    def state_of(full: Any) -> State:
        """What `getstate` gives, as a `State`."""
        _, (*words, index), cached = full
        return State(_words.pack(index, *words), cached)

    def capture(self) -> State:
        if self._memory is None:
            return self.state_of(random.getstate())
        return State(self._memory.read(), self._generator.gauss_next)

    def restore(self, state: State) -> None:
        assert state.raw is not None
        if self._memory is None:
            index, *words = _words.unpack(state.raw)
            random.setstate((random.Random.VERSION, (*words, index), state.cached))
            return
        self._memory.write(state.raw)
        self._generator.gauss_next = state.cached


class _Numpy:
    """The generator behind the functions of `numpy.random`: a Mersenne Twister, unless a script sets another one."""

    def __init__(self) -> None:
        self._state: Any = getattr(np.random.mtrand, "_rand", None)  # stays the same for good
        self._bits: Any = self  # what was looked at last; nothing yet
        self._kind = _TWISTER
        self._memory: _Memory | None = None
        self._held: State | None = None  # what it held when last looked at

    def _look(self) -> None:
        """Find the memory again if another generator was set."""
        bits = getattr(self._state, "_bit_generator", None)
        if bits is self._bits:
            return
        self._bits, self._memory, self._held = bits, None, None
        full = np.random.get_state(legacy=False)
        self._kind = full["bit_generator"]
        if bits is not None and self._kind == _TWISTER:
            memory = _Memory(bits.ctypes.state_address)
            self._memory = memory if memory.read() == self.state_of(full).raw else None

    @staticmethod
    def state_of(full: Any) -> State:
        """What `get_state(legacy=False)` gives, as a `State`."""
        if full["bit_generator"] != _TWISTER:
            return State(None, None, full)
        key, position = full["state"]["key"], full["state"]["pos"]
        raw = key.astype(np.uint32).tobytes() + int(position).to_bytes(4, sys.byteorder)
        return State(raw, float(full["gauss"]) if full["has_gauss"] else None)

    @staticmethod
    def full(state: State) -> Any:
        """What `set_state` takes."""
        if state.raw is None:
            return state.other
        *key, position = _words.unpack(state.raw)
        return _TWISTER, np.array(key, np.uint32), position, int(state.cached is not None), state.cached or 0.0

    def seeded(self, value: int) -> State:
        self._look()
        source = value if self._kind == _TWISTER else type(self._bits)(value)
        return self.state_of(np.random.RandomState(source).get_state(legacy=False))

    def fits(self, state: State) -> bool:
        self._look()
        return bool(self._kind == (_TWISTER if state.other is None else state.other["bit_generator"]))

    def capture(self) -> State:
        self._look()
        # A cached normal number can be used up without a trace in the raw bytes, so then these don't say it all.
        if self._memory and self._held and self._held.cached is None and self._memory.read() == self._held.raw:
            return self._held
        self._held = self.state_of(np.random.get_state(legacy=False))
        return self._held

    def restore(self, state: State) -> None:
        self._look()
        held, self._held = self._held, state
        # A draw of a normal number since `capture` would have moved the generator: then take the long way.
        plain = held is not None and held.cached is None and state.cached is None
        if self._memory and held and plain and state.raw and self._memory.read() == held.raw:
            self._memory.write(state.raw)
        else:
            np.random.set_state(self.full(state))


def seed(value: int) -> None:
    """Seed both generators, NumPy's with the 32 bits it takes."""
    random.seed(value)
    if np is not None:
        np.random.seed(value % 2**32)


def python_seeded(seed: int) -> State:
    """The state that `random.seed(seed)` gives."""
    return _Python.state_of(random.Random(seed).getstate())


def numpy_seeded(seed: int) -> State | None:
    """The state that `np.random.seed(seed % 2**32)` gives, of the kind of generator that is set; None without NumPy."""
    return None if _numpy is None else _numpy.seeded(seed % 2**32)


def numpy_fits(state: State | None) -> bool:
    """Whether the state is one of the kind of generator that is set."""
    return _numpy is None or state is None or _numpy.fits(state)


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
