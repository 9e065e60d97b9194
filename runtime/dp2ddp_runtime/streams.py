"""Random streams: the ordinary generators are one stream, which all ranks share; a forward has each rank's own.

The *shared* stream is what `random`, NumPy, torch (CPU, and CUDA on this rank's device) hold while the script runs: the
same states on all ranks, drawn from as the original draws. Inside of a wrapped model's forward (dropout) they hold a
rank's *own* states, so whatever it draws for its rows leaves the shared stream as it was.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import sys
import threading
import types
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from . import codec, place
from .world import exchange, world

#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED = {
    "torch.manual_seed": "ranks' own streams start anew where the script seeds torch, also with the same seed",
    "torch.random.manual_seed": "the same",
}
np = codec.np
_SEEDS = 1 << 63
_MOST, _ITEMS = 2000, 64  # objects in which generators are looked for, and items of a container
#: The classes of generators that a script may make.
GENERATORS: tuple[Any, ...] = (random.Random, torch.Generator)
if np is not None:
    GENERATORS += (np.random.RandomState, np.random.Generator, np.random.BitGenerator)

#: Held where streams are exchanged, and where a sharded loader's samples are loaded in the script's process: a thread
#: that loads must not draw from the stream of a forward.
lock = threading.RLock()


def replica_seed(seed: int, rank: int) -> int:
    """The seed of the own stream of a rank (a replica of `nn.DataParallel`), of what `torch.manual_seed` was given."""
    return (seed + 1 + rank) % _SEEDS


def seed_everything(seed: int, deterministic: bool = False) -> None:
    """Seed `random`, NumPy and torch (CPU and CUDA), alike on every rank. The ranks' own streams start from it, too.

    Args:
        seed: as `torch.manual_seed` takes it. A rank's own stream starts at `seed + 1 + rank`.
        deterministic: also set cuDNN's `deterministic` flag, and clear its `benchmark` flag.
    """
    random.seed(seed)
    if np is not None:
        np.random.seed(int(seed) % (1 << 32))
    torch.manual_seed(seed)
    if deterministic:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


# ---- the shared stream -----------------------------------------------------------------------------------------------


def own_start() -> None:
    """`setup`, on each rank: CUDA's generators, which start at random in each process, start from the CPU's seed.

    From here on own streams start anew where the script seeds torch, also with the seed that it had.
    """
    torch.cuda.manual_seed_all(torch.initial_seed())
    if not _Seeding.is_noticed:
        _Seeding.is_noticed = True
        torch.manual_seed = torch.random.manual_seed = _noticed(torch.manual_seed)


class _Seeding:
    """Of torch, by the script."""

    is_noticed = False
    count = 0


def _noticed(seed: Any) -> Any:
    @functools.wraps(seed)
    def manual_seed(*args: Any, **kwargs: Any) -> Any:
        generator = seed(*args, **kwargs)
        _Seeding.count += not _entered
        return generator

    return manual_seed


def capture(with_numpy: bool = True) -> list[Any]:
    """The states of the ordinary generators: plain values, for `restore`. CUDA's is None unless that is in use."""
    device = _cuda()
    return [
        torch.default_generator.get_state(),
        random.getstate(),
        np.random.get_state(legacy=False) if with_numpy and np is not None else None,
        None if device is None else torch.cuda.get_rng_state(device),
    ]


def restore(states: Sequence[Any]) -> None:
    """Let the ordinary generators go on from what `capture` gave, maybe in another process."""
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    if states[2] is not None and np is not None:
        np.random.set_state(states[2])
    device = _cuda()
    if states[3] is not None and device is not None:
        torch.cuda.set_rng_state(states[3], device)


def _cuda() -> torch.device | None:
    """The device whose generator takes part. A process alone has its current one: an original, in tests."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    if world.device.type == "cuda":
        return world.device
    return torch.device("cuda", torch.cuda.current_device()) if world.alone else None


def adopt(generators: Iterable[Any] = ()) -> None:
    """Rank 0's states of the ordinary generators, and of others, on all ranks. A collective.

    Ranks may have come apart where the script draws on one of them alone, or where nobody has seeded something.

    Args:
        generators: of `GENERATORS`, the same ones on every rank.
    """
    if world.alone:
        return
    others = list(generators)

    def states() -> Any:
        return [capture(), [state_of(each) for each in others]]

    with lock:
        if len({told.value for told in exchange("random streams", zlib.crc32(_bytes(states())))}) > 1:
            kept, more = exchange("random streams' states", states() if world.rank == 0 else None)[0].value
            restore(kept)
            for generator, state in zip(others, more):
                set_state(generator, state)


class Position:
    """Where the ordinary generators, and others, are: to see whether something was drawn, and to go back. Cheap.

    NumPy copies its state in 32 us, and gives it back in 35 (the others: 9 and 3). Its memory is compared in 1.
    """

    def __init__(self, others: Sequence[Any] = ()) -> None:
        self._others = others
        self._ours, self._memory, self._numpy = capture(False), _numpys_memory(), _numpys()
        self._theirs = [state_of(each) for each in others]

    @property
    def moved(self) -> bool:
        """Whether any of them has been drawn from."""
        (torchs, pythons, _, cudas), before = capture(False), self._ours
        if pythons != before[1] or _numpys_memory() != self._memory:
            return True
        theirs = [state_of(each) for each in self._others]
        return _bytes([torchs, cudas, theirs]) != _bytes([before[0], before[3], self._theirs])

    def go_back(self) -> None:
        """To where they were."""
        restore([*self._ours[:2], self._numpy, self._ours[3]])
        for generator, state in zip(self._others, self._theirs):
            set_state(generator, state)


class _Numpy:
    """NumPy's state, copied where it has changed."""

    memory: Any = b""
    state: Any = None


def _numpys() -> Any:
    memory = _numpys_memory()
    if np is not None and memory != _Numpy.memory:
        _Numpy.memory, _Numpy.state = memory, np.random.get_state(legacy=False)
    return _Numpy.state


def _numpys_memory() -> Any:
    if np is None:
        return None
    bits = np.random.mtrand._rand._bit_generator
    if type(bits) is not np.random.MT19937:
        return bits.state
    return ctypes.string_at(bits.ctypes.state_address, 4 * 625)  # 624 words and the position


def _bytes(value: Any) -> bytes:
    """The same for the same states."""
    if isinstance(value, torch.Tensor):
        return codec.memory(value)
    if isinstance(value, (dict, list)):
        return b";".join(_bytes(each) for each in (value.values() if isinstance(value, dict) else value))
    return value.tobytes() if np is not None and isinstance(value, np.ndarray) else repr(value).encode()


# ---- a rank's own ----------------------------------------------------------------------------------------------------


class Stream:
    """A rank's own random stream. `with stream:` makes the ordinary generators draw from it.

    It starts from the seed that the script gave torch, anew where the script seeds again. Inside of another one it
    changes nothing. NumPy takes part from the second forward on that draws from it: its state is dear to exchange, and
    few forwards do. The first one draws alike on all ranks.

    Args:
        rank: whose it is; None: this rank's.
    """

    def __init__(self, rank: int | None = None) -> None:
        self.rank = rank
        self._began: Any = None  # the seed, and how often the script had seeded
        self._memory = self._numpy = None  # NumPy's, where it takes no part
        self._own: list[Any] = []
        self._shared: list[Any] = []
        self._has_numpy = False

    def __enter__(self) -> Stream:
        lock.acquire()
        _entered.append(self)
        if len(_entered) == 1:
            began = torch.initial_seed(), _Seeding.count
            if began != self._began:
                self._began = began
                self._own = self._start()
            self._memory = None if self._has_numpy else _numpys_memory()
            self._numpy = None if self._has_numpy else _numpys()
            self._complete()
            self._shared, self._own = self._exchange(self._own), []
        return self

    def __exit__(self, *error: object) -> None:
        _entered.pop()
        if not _entered:
            self._own = self._exchange(self._shared)
            if not self._has_numpy and self._memory != _numpys_memory():
                np.random.set_state(self._numpy)
                self._has_numpy, self._own[2] = True, None
        lock.release()

    def _exchange(self, states: list[Any]) -> list[Any]:
        before = capture(self._has_numpy)
        restore(states)
        return before

    @property
    def _seed(self) -> int:
        return replica_seed(self._began[0], world.rank if self.rank is None else self.rank)

    def _complete(self) -> None:
        """With what has come into use."""
        device = _cuda()
        if device is not None and self._own[3] is None:
            self._own[3] = torch.Generator(device).manual_seed(self._seed).get_state()
        if self._has_numpy and self._own[2] is None:
            self._own[2] = np.random.RandomState(self._seed % (1 << 32)).get_state(legacy=False)

    def _start(self) -> list[Any]:
        return [torch.Generator().manual_seed(self._seed).get_state(), random.Random(self._seed).getstate(), None, None]


_entered: list[Stream] = []  # the `with` blocks we are in
forward = Stream()  #: this rank's, for the wrapped model's forward


# ---- generators that a script makes ----------------------------------------------------------------------------------


def state_of(generator: Any) -> Any:
    """The state of one of `GENERATORS`: a plain value."""
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


def reseed(generator: Any, seed: int) -> None:
    """Start a generator anew."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif hasattr(generator, "seed"):  # `random.Random`, NumPy's `RandomState`
        generator.seed(seed)
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(seed).state


def generators_in(*roots: Any) -> list[Any]:
    """The generators, but for the ordinary ones, that can be reached from objects: by their attributes, items and
    closures, and as globals of the script's modules in which their classes and functions are.

    In the same order on every rank.
    """
    found, seen, todo = [], {id(each): each for each in _ordinary()}, deque(roots)
    while todo and len(seen) < _MOST:
        value = todo.popleft()
        if value is None or isinstance(value, (str, bytes, int, float, torch.Tensor, type)) or id(value) in seen:
            continue
        seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, GENERATORS):
            if _has_state(value):
                found.append(value)
        else:
            todo.extend(_parts(value))
    return found


def _ordinary() -> list[Any]:
    ours = [torch.default_generator, vars(random)["_inst"]]
    return ours if np is None else [*ours, np.random.mtrand._rand]


def _has_state(generator: Any) -> bool:
    on_device = isinstance(generator, torch.Generator) and generator.device.type != "cpu"
    return not on_device and not isinstance(generator, random.SystemRandom)


def _parts(value: Any) -> Iterator[Any]:
    """What an object leads to."""
    if isinstance(value, dict):
        yield from itertools.islice(value.values(), _ITEMS)
    elif isinstance(value, (list, tuple, deque)):
        yield from itertools.islice(value, _ITEMS)
    elif isinstance(value, types.ModuleType):
        yield from (each for each in vars(value).values() if isinstance(each, GENERATORS))
    elif isinstance(value, types.FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
        yield value.__defaults__
        yield _scripts_module(value.__module__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield from (value.__self__, getattr(value, "__func__", None))
    else:
        yield getattr(value, "__dict__", None)
        yield from (_scripts_module(kind.__module__) for kind in type(value).__mro__)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # its name isn't bound yet
        return False


def _scripts_module(name: Any) -> Any:
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = getattr(module, "__file__", None)
    name, is_installed = place.origin(file) if isinstance(file, str) else ("", False)
    return module if name and not is_installed else None
