"""Random streams: one that all ranks share, and the ranks' own for what must differ between them.

The *shared* stream is what the global generators (torch's CPU one, `random`, NumPy, this device's CUDA one) hold while
the script runs: the same state on every rank, drawn from exactly as the original script draws. Inside the model's
forward (dropout) and while samples are fetched (augmentation) the global generators hold a rank's *own* state
instead, so whatever a shard draws there leaves the shared stream as it was.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import world

np: Any
try:
    import numpy as np
except ImportError:  # torch works without NumPy, and so does this runtime
    np = None

_SWAPS = np is not None and hasattr(np.random, "set_bit_generator")  # NumPy 1.24
_SEEDS = 2**63
_EPOCH_STRIDE = 1_000_003  # a prime far above any world size, so that no two (epoch, rank) share a seed


def replica_seed(seed: int, rank: int, epoch: int | None = None) -> int:
    """The seed of a rank's own stream.

    Args:
        seed: what the script gave `torch.manual_seed` (`torch.initial_seed()`).
        rank: the rank, or the replica of `nn.DataParallel`.
        epoch: None for the stream of the forward passes, else the epoch whose samples are being loaded.
    """
    own = seed + 1 + rank
    if epoch is not None:
        own += (epoch + 1) * _EPOCH_STRIDE
    return own % _SEEDS


class State(NamedTuple):
    """The global generators' states, with the normal numbers that they have drawn along with the last ones."""

    torch: torch.Tensor
    python: tuple[Any, ...]
    numpy: dict[str, Any] | None  # None: there is no NumPy, or its generator is to stay as it is
    cuda: torch.Tensor | None


def capture(device: torch.device | None = None, numpy: bool = True) -> State:
    """The global generators' state; with a CUDA `device`, that device's generator's too."""
    numbers = np.random.get_state(legacy=False) if numpy and np is not None else None
    cuda = torch.cuda.get_rng_state(device) if device is not None and device.type == "cuda" else None
    return State(torch.default_generator.get_state(), random.getstate(), numbers, cuda)


def restore(state: State, device: torch.device | None = None) -> None:
    """Put the global generators into `state`."""
    torch.default_generator.set_state(state.torch)
    random.setstate(state.python)
    if state.numpy is not None and np is not None:
        kind = state.numpy["bit_generator"]
        if _SWAPS and kind != type(np.random.get_bit_generator()).__name__:
            kinds = {known.__name__: known for known in np.random.BitGenerator.__subclasses__()}
            np.random.set_bit_generator(kinds[kind]())
        np.random.set_state(state.numpy)
    if state.cuda is not None and device is not None:
        torch.cuda.set_rng_state(state.cuda, device)


def alike(one: State, other: State) -> bool:
    """Whether two states of the CPU's generators are the same."""
    return torch.equal(one.torch, other.torch) and one.python == other.python and _same(one.numpy, other.numpy)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other or bool(np.array_equal(one, other))


def fresh(seed: int, device: torch.device | None = None) -> State:
    """The state that seeding all generators with `seed` gives; the generators themselves stay as they are."""
    numpy = None if np is None else np.random.RandomState(seed % 2**32).get_state(legacy=False)
    on_cuda = device is not None and device.type == "cuda"
    cuda = torch.Generator(device).manual_seed(seed).get_state() if on_cuda else None
    return State(torch.Generator().manual_seed(seed).get_state(), random.Random(seed).getstate(), numpy, cuda)


class Stream:
    """One rank's own random stream. `with stream:` makes the global generators draw from it.

    It starts from `torch.initial_seed()` as the script set it, and starts anew when the script sets another.
    Entering while the generators already hold an own stream changes nothing.

    NumPy's state would take as long to change as all others together. So NumPy's generator is exchanged, not its
    state. That forgets the normal number that it drew along with the last one: the shared stream gets its own back,
    a rank's own stream goes on without.

    Args:
        rank: whose; this rank's by default.
        epoch: None for the stream of the forward passes, else the epoch whose samples are being loaded.
        watches: find out whether something was drawn.

    Attributes:
        drew: whether it was, the last time.
    """

    def __init__(self, rank: int | None = None, epoch: int | None = None, watches: bool = False) -> None:
        self.drew = False
        self._watches = watches
        self._watched: dict[str, Any] | None = None
        self.rank = rank
        self.epoch = epoch
        self._base: int | None = None
        self._device: torch.device | None = None
        self._own: State | None = None
        self._shared: State | None = None
        self._numpy: Any = None  # the generator that NumPy draws from next time; the shared one while we are inside

    def restart(self, epoch: int | None = None) -> None:
        """Start the stream anew where it is used next, for `epoch` (None: as at the start of the run)."""
        self.epoch = epoch
        self._own = None

    def __enter__(self) -> Stream:
        _entered.append(self if _active is None else None)
        if _active is None:
            self._prepare()
            self._to_own()
        return self

    def __exit__(self, *error: object) -> None:
        if _entered.pop() is self:
            self._to_shared()

    def _prepare(self) -> None:
        base = torch.initial_seed()
        device = _cuda_device()
        if self._own is None or (base, device) != (self._base, self._device):
            rank = world.rank() if self.rank is None else self.rank
            self._base, self._device = base, device
            self._own = fresh(replica_seed(base, rank, self.epoch), device)
            if _SWAPS:
                self._numpy = np.random.MT19937()
                self._numpy.state = self._own.numpy
                self._own = self._own._replace(numpy=None)

    def _to_own(self) -> None:
        global _active
        assert self._own is not None
        self._shared = capture(self._device)
        self._swap()
        restore(self._own, self._device)
        if self._watches and np is not None:
            self._watched = np.random.get_state(legacy=False)
        _active = self

    def _to_shared(self) -> None:
        global _active
        assert self._shared is not None
        before, self._own = self._own, capture(self._device, numpy=self._watches or not _SWAPS)
        if self._watches:
            assert before is not None
            self.drew = not alike(before._replace(numpy=self._watched), self._own)
        if _SWAPS:
            self._own = self._own._replace(numpy=None)
        self._swap()
        unchanged = _SWAPS and self._shared.numpy is not None and not self._shared.numpy["has_gauss"]
        restore(self._shared._replace(numpy=None) if unchanged else self._shared, self._device)
        _active = None

    def _swap(self) -> None:
        if _SWAPS:
            before = np.random.get_bit_generator()
            with before.lock:  # another thread may be drawing
                np.random.set_bit_generator(self._numpy)
            self._numpy = before


_active: Stream | None = None  # whose state the global generators hold; None: the shared one
_entered: list[Stream | None] = []  # the `with` blocks we are in; None where one changed nothing


class _Shared:
    """`with rng.shared:` draws from the shared stream again, for a while, inside a rank's own one."""

    def __init__(self) -> None:
        self._left: list[Stream | None] = []

    def __enter__(self) -> None:
        self._left.append(_active)
        if _active is not None:
            _active._to_shared()

    def __exit__(self, *error: object) -> None:
        left = self._left.pop()
        if left is not None:
            left._to_own()


shared = _Shared()
forward = Stream()  # dropout and the like, inside the wrapped model
loading = Stream(epoch=0, watches=True)  # augmentation, in the process that fetches the samples


def _cuda_device() -> torch.device | None:
    device = world.device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return device if device is not None and device.type == "cuda" else None


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, NumPy and torch (CPU and CUDA)."""
    random.seed(seed)
    if np is not None:
        np.random.seed(int(seed) % 2**32)  # scripts that parse a seed as a float get by with torch and `random`
    torch.manual_seed(seed)


def seed_everything(seed: int, deterministic: bool = False) -> None:
    """Seed `random`, NumPy and torch (CPU and CUDA) alike on every rank, and start the ranks' own streams from it.

    Args:
        seed: the shared stream's seed, as `torch.manual_seed` takes it. A rank's own starts at `seed + 1 + rank`.
        deterministic: also set cuDNN's `deterministic` flag, and clear its `benchmark` flag.
    """
    seed_generators(seed)
    forward.restart()
    loading.restart(epoch=0)
    if deterministic:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def adopt_main_state(generators: Sequence[torch.Generator] = ()) -> None:
    """Take over rank 0's shared stream. A collective of one broadcast; nothing happens with a single rank.

    Args:
        generators: the script's own generators, which take over the state of their counterparts on rank 0.
    """
    if world.world_size() == 1:
        return
    device = _cuda_device()
    with shared:
        told = [*capture(device), [generator.get_state() for generator in generators]] if world.is_main() else None
        main, (version, words, gauss), numpy, cuda, states = _broadcast(json.dumps(told, default=_tagged))
        restore(State(main, (version, tuple(words), gauss), numpy, cuda), device)
    for generator, state in zip(generators, states):
        generator.set_state(state)


_SLOT = 32768  # holds the states (18 kB, and 7 more for each of the script's generators); more takes a second broadcast


def _broadcast(text: str) -> Any:
    """What rank 0's `text` says, on every rank. It is JSON, which runs no code wherever it comes from."""
    told = _in_slot(text if len(text) <= _SLOT else str(len(text)), _SLOT)
    return _in_slot(text, told) if isinstance(told, int) else told


def _in_slot(text: str, size: int) -> Any:
    slot = _from_bytes(text.ljust(size).encode())
    dist.broadcast(slot, src=0)
    return json.loads(bytes(slot.tolist()), object_hook=_untagged)


def _tagged(value: Any) -> Any:
    """A tensor of bytes, or an array or a number of NumPy's, as JSON has it."""
    if isinstance(value, torch.Tensor):
        return {"tensor": base64.b64encode(bytes(value.tolist())).decode()}
    if isinstance(value, np.ndarray):
        return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str, "shape": value.shape}
    return value.item()


def _untagged(value: dict[str, Any]) -> Any:
    if "tensor" in value:
        return _from_bytes(base64.b64decode(value["tensor"]))
    if "array" in value:
        return np.frombuffer(base64.b64decode(value["array"]), value["dtype"]).reshape(value["shape"])
    return value


def _from_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
