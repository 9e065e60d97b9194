"""Random streams: one that all ranks share, and the ranks' own for what must differ between them.

The *shared* stream is what the global generators (torch's CPU one, `random`, NumPy, this device's CUDA one) hold while
the script runs: the same state on every rank, drawn from exactly as the original script draws. Inside the model's
forward (dropout) and while samples are fetched (augmentation) the global generators hold a rank's *own* state
instead, so whatever a shard draws there leaves the shared stream as it was.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from ..base import codec, world
from ..base.location import here, is_of_script
from ..base.uncompiled import uncompiled
from . import file_sync
from .exchange import exchange

np = codec.np
_SEEDS = 2**63
_EPOCH_STRIDE = 1_000_003  # a prime far above any world size, so that no two (epoch, rank) share a seed


def replica_seed(seed: int, rank: int, epoch: int | None = None) -> int:
    """The seed of the own stream of a rank (a replica of `nn.DataParallel`), of what `torch.manual_seed` was given.

    For forward passes, or, with an `epoch`, for loading its samples.
    """
    return (seed + 1 + rank + (0 if epoch is None else (epoch + 1) * _EPOCH_STRIDE)) % _SEEDS


class State(NamedTuple):
    """The global generators' states."""

    torch: torch.Tensor
    python: tuple[Any, ...]
    numpy: dict[str, Any] | None  # None: there is no NumPy
    cuda: torch.Tensor | None


def capture(device: torch.device | None = None) -> State:
    """The global generators' state; with a CUDA `device`, that device's generator's too."""
    numbers = np.random.get_state(legacy=False) if np is not None else None
    cuda = torch.cuda.get_rng_state(device) if device is not None and device.type == "cuda" else None
    return State(torch.default_generator.get_state(), random.getstate(), numbers, cuda)


def restore(state: State, device: torch.device | None = None) -> None:
    """Put the global generators into `state`."""
    torch.default_generator.set_state(state.torch)
    random.setstate(state.python)
    if state.numpy is not None and np is not None:
        np.random.set_state(state.numpy)
    if state.cuda is not None and device is not None:
        torch.cuda.set_rng_state(state.cuda, device)


#: The classes of generators that a script may make.
GENERATORS: tuple[Any, ...] = (random.Random, torch.Generator)
if np is not None:
    GENERATORS += (np.random.RandomState, np.random.Generator, np.random.BitGenerator)


def state_of(generator: Any) -> Any:
    """The state of one of `GENERATORS`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def set_state(generator: Any, state: Any) -> None:
    """Let a generator go on from what `state_of` gave."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator) or (np is not None and isinstance(generator, np.random.RandomState)):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


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
    Entering while the generators already hold an own stream changes nothing. `epoch`: whose samples are being
    loaded; None for the stream of the forward passes.
    """

    def __init__(self, rank: int | None = None, epoch: int | None = None) -> None:
        self.rank = rank
        self.epoch = epoch
        self._source: Any = None  # the seed and the device that it started from
        self._own: Any = None  # its state, and what that was when it was entered the last time
        self._before: Any = None
        self._shared: Any = None

    @property
    def drew(self) -> bool:
        """Whether something was drawn from it the last time."""
        return not alike(self._before, self._own)

    def restart(self, epoch: int | None = None) -> None:
        """Start the stream anew where it is used next, for `epoch` (None: as at the start of the run)."""
        self.epoch = epoch
        self._own = None

    @uncompiled
    def __enter__(self) -> Stream:
        _entered.append(_active is None)
        if _active is None:
            self._begin()
            self._to_own()
        return self

    def _begin(self) -> None:
        source = base, device = torch.initial_seed(), _cuda_device()
        if self._own is None or source != self._source:
            rank = world.rank() if self.rank is None else self.rank
            begun = fresh(replica_seed(base, rank, self.epoch), device)
            if self._own is not None and base == self._source[0]:  # CUDA has been initialised since
                begun = self._own._replace(cuda=begun.cuda)
            self._source, self._own = source, begun

    @uncompiled
    def __exit__(self, *error: object) -> None:
        if _entered.pop():
            self._to_shared()

    def _to_own(self) -> None:
        global _active
        self._before, self._shared = self._own, capture(self._source[1])
        restore(self._own, self._source[1])
        _active = self

    def _to_shared(self) -> None:
        global _active
        self._own = capture(self._source[1])
        restore(self._shared, self._source[1])
        _active = None


_active: Stream | None = None  # whose state the global generators hold; None: the shared one
_entered: list[bool] = []  # the `with` blocks we are in: whether one changed something


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Draw from the shared stream again, for a while, inside a rank's own one."""
    left = _active
    if left is not None:
        left._to_shared()
    try:
        yield
    finally:
        if left is not None:
            left._to_own()


forward = Stream()  # dropout and the like, inside the wrapped model
loading = Stream(epoch=0)  # augmentation, in the process that fetches the samples


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


def watch_seeding() -> None:
    """Let the ranks' own streams begin anew wherever the script seeds torch, also with the seed that it had."""
    real = torch.manual_seed

    @functools.wraps(real)
    def manual_seed(seed: Any) -> torch.Generator:
        generator = real(seed)
        if _active is None:
            forward.restart()
            loading.restart(epoch=0)
        return generator

    torch.manual_seed = torch.random.manual_seed = manual_seed


def share_entropy(store: Any) -> None:
    """From now on generators without a seed, libraries' too, begin alike on every rank where all ranks draw alike.

    Its own samples and forward passes, threads, the processes that it starts, and temporary names ask the system.
    """
    if world.is_main():
        store.set("entropy", os.urandom(16).hex())
    secret, asked = store.get("entropy").decode(), Counter[str]()

    def bits(count: int) -> int | None:
        is_main_thread = threading.get_ident() == threading.main_thread().ident
        if _active is not None or not is_main_thread or file_sync.shared() is None:
            return None
        place = f"{secret} {here()}"  # what rank 0 alone asks for elsewhere is of no consequence
        asked[place] += 1
        return random.Random(f"{place} {asked[place]}").getrandbits(count)

    def stand_in(real: Any, use: Callable[[int], Any]) -> Any:
        return functools.wraps(real)(lambda *a: real(*a) if (given := bits(*a or (63,))) is None else use(given))

    real: Any = random.Random.seed
    python: Any = random
    python.Random.seed = lambda self, a=None, version=2: real(self, bits(256) if a is None else a, version)
    python.seed = python._inst.seed
    vars(tempfile).update(_Random=type("_Random", (random.Random,), {"seed": real}))
    torch.seed = torch.random.seed = stand_in(torch.seed, lambda seed: torch.manual_seed(seed).initial_seed())
    if np is not None:  # which takes all its seeds from there
        np.random.bit_generator.randbits = stand_in(np.random.bit_generator.randbits, int)


def watch_states() -> None:
    """Let a rank, which sees one GPU, load all GPUs' states: the first one's is the shared stream's."""
    random_module: Any = torch.cuda.random
    real = random_module.set_rng_state_all

    @functools.wraps(real)
    def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
        real(list(new_states)[: torch.cuda.device_count()])

    torch.cuda.set_rng_state_all = random_module.set_rng_state_all = set_rng_state_all


def adopt_main_state(generators: Sequence[torch.Generator] = ()) -> None:
    """Take over rank 0's shared stream, and its states of the script's own `generators`. A collective.

    So are the states of those that the script's modules have made while they were imported (`random.Random()`).
    """
    if world.world_size() == 1:
        return
    device, modules = _cuda_device(), _held_by_modules()
    with shared():
        told = None
        if world.is_main():
            held = {name: state_of(each) for name, each in modules.items()}
            told = (*capture(device), [each.get_state() for each in generators], held)
        *states, own, held = exchange("the random state", told)[0]
        restore(State(*states), device)
    for generator, state in zip(generators, own):
        set_state(generator, state)
    for name in held.keys() & modules.keys():
        set_state(modules[name], held[name])


def _held_by_modules() -> dict[str, Any]:
    """The generators of Python's and NumPy's that the script's modules hold, by name."""
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        for name, value in list(vars(module).items()) if isinstance(file, str) and is_of_script(file) else ():
            if type(value) in GENERATORS and not isinstance(value, torch.Generator):
                found[f"{module.__name__}.{name}"] = value
    return found
