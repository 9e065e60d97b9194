"""Random streams: ordinary generators are one stream on all ranks; a forward has each rank's own.

The *shared* stream is what `random`, NumPy, torch (CPU, and CUDA on this rank's device) hold while the script runs: the
same states on all ranks, drawn from as the original draws. Inside of a wrapped model's forward (dropout) they hold a
rank's *own* states, so whatever it draws for its rows leaves the shared stream as it was. Beside threads of the
script's that is so of torch's alone: they draw from the others at any time.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import marshal
import random
import sys
import threading
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from . import codec, place
from .imported import replace
from .world import exchange, world

#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED = {
    "torch.manual_seed": "ranks' own streams start anew where the script seeds torch, also with the same seed",
    "torch.random.manual_seed": "the same",
}
np = codec.np
_SEEDS = 1 << 63
_CPU = torch.device("cpu")
_MOST, _ITEMS = 2000, 64  # objects in which generators are looked for, and items of a container
#: Attributes of methods, partials and instances.
_LEADING = ("__self__", "__func__", "func", "args", "keywords", "__dict__")
#: The classes of generators that a script may make.
GENERATORS: tuple[Any, ...] = (random.Random, torch.Generator)
if np is not None:
    GENERATORS += (np.random.RandomState, np.random.Generator, np.random.BitGenerator)

#: Held where streams are exchanged, and where a sharded loader's samples are loaded in the script's process: a thread
#: that loads must not draw from the stream of a forward.
lock = threading.RLock()
iterated_by_threads: list[Any] = []  #: Loaders that are: they draw at any time.


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
        noticed = _noticed(torch.manual_seed)
        replace([(torch, "manual_seed", noticed), (torch.random, "manual_seed", noticed)])


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


def capture() -> list[Any]:
    """The states of the ordinary generators: plain values, for `restore`. CUDA's is None unless that is in use."""
    device = _cuda()
    return [
        torch.default_generator.get_state(),
        random.getstate(),
        None if np is None else np.random.get_state(legacy=False),
        None if device is None else torch.cuda.get_rng_state(device),
    ]


def restore(states: Sequence[Any]) -> None:
    """Let the ordinary generators go on from what `capture` gave, maybe in another process."""
    torch.default_generator.set_state(states[0])
    if states[1] is not None:
        random.setstate(states[1])
    if states[2] is not None:
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
    with lock:
        now = Position(list(generators))
        if _threads_draw():
            now.states[0][1:3] = None, None
        if len({told.value for told in exchange("random streams", zlib.crc32(_bytes(now.states)))}) > 1:
            now.states = exchange("random streams' states", now.states if world.rank == 0 else None)[0].value
            now.go_back()


def adopting() -> Callable[[], None]:
    """What adopts rank 0's streams if torch is drawn from until it is called, by no thread. A collective then."""

    def states() -> list[torch.Tensor]:
        device = _cuda()
        return [torch.get_rng_state(), *([] if device is None else [torch.cuda.get_rng_state(device)])]

    before = states()
    return lambda: None if iterated_by_threads or all(map(torch.equal, before, states())) else adopt()


class Position:
    """Where the ordinary generators, and others, are: to see whether something was drawn, and to go back."""

    def __init__(self, others: Sequence[Any] = ()) -> None:
        self._others = others
        self.states: Any = [capture(), [state_of(each) for each in others]]

    @property
    def moved(self) -> bool:
        """Whether any of them has been drawn from."""
        return _bytes(Position(self._others).states) != _bytes(self.states)

    def go_back(self) -> None:
        """To where they were."""
        restore(self.states[0])
        for generator, state in zip(self._others, self.states[1]):
            set_state(generator, state)


def _bytes(value: Any) -> bytes:
    """The same for the same states."""
    if isinstance(value, torch.Tensor):
        return codec.memory(value)
    if isinstance(value, list):
        return b";".join(map(_bytes, value))
    return marshal.dumps(value, 2)  # (later versions of the format tell how often something is held)


# ---- a rank's own ----------------------------------------------------------------------------------------------------


class Stream:
    """A rank's own random stream. `with stream:` makes the ordinary generators draw from it.

    It starts from the seed that the script gave torch, anew where the script seeds again. Inside of another one it
    changes nothing.

    Args:
        rank: whose it is; None: this rank's.
    """

    def __init__(self, rank: int | None = None) -> None:
        self.rank = rank
        self._began: Any = None  # the seed, and how often the script had seeded
        self._states: list[Any] = []  # its own; inside, the shared ones
        self._spares = False  # Python's and NumPy's, now

    def __enter__(self) -> Stream:
        lock.acquire()
        _entered.append(self)
        if len(_entered) == 1:
            began = torch.initial_seed(), _Seeding.count
            seed = replica_seed(began[0], world.rank if self.rank is None else self.rank)
            if began != self._began:
                self._began, self._states = began, _started(seed)
            device = _cuda()
            if device is not None and self._states[3] is None:  # it has come into use
                self._states[3] = torch.Generator(device).manual_seed(seed).get_state()
            self._spares = _threads_draw()
            self._exchange()
        return self

    def __exit__(self, *error: object) -> None:
        _entered.pop()
        if not _entered:
            self._exchange()
        lock.release()

    def _exchange(self) -> None:
        before = capture()
        if self._spares:
            before[1:3], self._states[1:3] = self._states[1:3], [None, None]
        restore(self._states)
        self._states = before


def _started(seed: int) -> list[Any]:
    """States as `capture` gives them."""
    numpys = None if np is None else np.random.RandomState(seed % (1 << 32)).get_state(legacy=False)
    return [torch.Generator().manual_seed(seed).get_state(), random.Random(seed).getstate(), numpys, None]


def _threads_draw() -> bool:
    """Whether threads run code of the script's, which may draw from what all threads have."""
    if threading.active_count() == 1:
        return False
    own = (threading.get_ident(), threading.main_thread().ident)
    return any(place.is_scripts(frame) for thread, frame in sys._current_frames().items() if thread not in own)


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
    ordinary = [torch.default_generator, vars(random)["_inst"], *([] if np is None else [np.random.mtrand._rand])]
    found, seen, todo = [], {id(each): each for each in ordinary}, deque(roots)
    while todo and len(seen) < _MOST:
        value = todo.popleft()
        if value is None or isinstance(value, (str, bytes, int, float, torch.Tensor, type)) or id(value) in seen:
            continue
        seen[id(value)] = value  # kept, so that no other object gets its id
        if not isinstance(value, GENERATORS):
            todo.extend(_parts(value))
        elif _is_plain(value):
            found.append(value)
    return found


def _parts(value: Any) -> Iterator[Any]:
    """What an object leads to."""
    if isinstance(value, (dict, list, tuple, deque)):
        yield from itertools.islice(value.values() if isinstance(value, dict) else value, _ITEMS)
    elif isinstance(value, types.ModuleType):
        yield from (each for each in vars(value).values() if isinstance(each, GENERATORS))
    elif isinstance(value, types.FunctionType):
        yield from inspect.getclosurevars(value).nonlocals.values()
        yield from (value.__defaults__, _scripts_module(value.__module__))
    else:
        yield from (getattr(value, name, None) for name in _LEADING)
        yield from (_scripts_module(kind.__module__) for kind in type(value).__mro__)


def adopt_modules() -> None:
    """Rank 0's states of the generators that are globals of the script's modules by now, on all ranks: nobody may have
    seeded them. A collective.
    """
    modules = [(name, _scripts_module(name)) for name in list(sys.modules)]
    named = ((f"{name}.{key}", each) for name, it in modules if it for key, each in vars(it).items())
    found = {name: each for name, each in named if isinstance(each, GENERATORS) and _is_plain(each)}
    states = {name: state_of(each) for name, each in found.items()}
    first = exchange("modules' random streams", None if world.rank else states)[0].value
    for name in found.keys() & first.keys():
        set_state(found[name], first[name])


def _is_plain(generator: Any) -> bool:
    return not isinstance(generator, random.SystemRandom) and getattr(generator, "device", _CPU) == _CPU


def _scripts_module(name: Any) -> Any:
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = getattr(module, "__file__", None)
    name, is_installed = place.origin(file) if isinstance(file, str) else ("", False)
    return module if name and not is_installed else None
