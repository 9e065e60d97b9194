"""Random streams: one that all ranks share, and the ranks' own for what must differ between them.

The *shared* stream is what the global generators (torch's CPU one, `random`, NumPy, this device's CUDA one) hold while
the script runs: the same state on every rank, drawn from exactly as the original script draws. Inside the model's
forward (dropout) and while samples are fetched (augmentation) the global generators hold a rank's *own* state
instead, so whatever a shard draws there leaves the shared stream as it was.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import twisters, world

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
    """The state of the global generators."""

    torch: torch.Tensor
    python: twisters.State
    numpy: twisters.State | None
    cuda: torch.Tensor | None


def capture(device: torch.device | None = None) -> State:
    """The global generators' state; with a CUDA `device`, that device's generator's too."""
    cuda = torch.cuda.get_rng_state(device) if device is not None and device.type == "cuda" else None
    return State(torch.get_rng_state(), twisters.capture_python(), twisters.capture_numpy(), cuda)


def alike(one: State, other: State) -> bool:
    """Whether two states of the CPU's generators are the same."""
    if not torch.equal(one.torch, other.torch) or not one.python.same(other.python):
        return False
    if one.numpy is None or other.numpy is None:
        return one.numpy is other.numpy
    return one.numpy.same(other.numpy)


def restore(state: State, device: torch.device | None = None) -> None:
    """Put the global generators into `state`."""
    torch.default_generator.set_state(state.torch)
    twisters.restore_python(state.python)
    twisters.restore_numpy(state.numpy)
    if state.cuda is not None and device is not None:
        torch.cuda.set_rng_state(state.cuda, device)


def fresh(seed: int, device: torch.device | None = None) -> State:
    """The state that seeding all generators with `seed` gives; the generators themselves stay as they are."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    cuda = None
    if device is not None and device.type == "cuda":
        on_device = torch.Generator(device)
        on_device.manual_seed(seed)
        cuda = on_device.get_state()
    return State(generator.get_state(), twisters.python_seeded(seed), twisters.numpy_seeded(seed), cuda)


class Stream:
    """One rank's own random stream. `with stream:` makes the global generators draw from it.

    It starts from `torch.initial_seed()` as the script set it, and starts anew when the script sets another.
    Entering while the generators already hold an own stream changes nothing.
    """

    def __init__(self, rank: int | None = None, epoch: int | None = None) -> None:
        self.rank = rank
        self.epoch = epoch
        self._base: int | None = None
        self._own: State | None = None
        self._shared: State | None = None
        self._device: torch.device | None = None

    def restart(self, epoch: int | None = None) -> None:
        """Start the stream anew where it is used next, for `epoch` (None: as at the start of the run)."""
        self.epoch = epoch
        self._own = None

    def __enter__(self) -> Stream:
        global _active
        _entered.append(self if _active is None else None)
        if _active is None:
            self._prepare()
            self._to_own()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if _entered.pop() is self:
            self._to_shared()

    def _prepare(self) -> None:
        base = torch.initial_seed()
        device = _cuda_device()
        if (
            self._own is None
            or (base, device) != (self._base, self._device)
            or not twisters.numpy_fits(self._own.numpy)
        ):
            rank = world.rank() if self.rank is None else self.rank
            self._base, self._device = base, device
            self._own = fresh(replica_seed(base, rank, self.epoch), device)

    def _to_own(self) -> None:
        global _active
        assert self._own is not None
        self._shared = capture(self._device)
        restore(self._own, self._device)
        _active = self

    def _to_shared(self) -> None:
        global _active
        assert self._shared is not None
        self._own = capture(self._device)
        restore(self._shared, self._device)
        _active = None


_active: Stream | None = None  # whose state the global generators hold; None: the shared one
_entered: list[Stream | None] = []  # the `with` blocks we are in; None where one changed nothing


class _Shared:
    """`with streams.shared:` draws from the shared stream again, for a while, inside a rank's own one."""

    def __init__(self) -> None:
        self._left: list[Stream | None] = []

    def __enter__(self) -> None:
        self._left.append(_active)
        if _active is not None:
            _active._to_shared()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        left = self._left.pop()
        if left is not None:
            left._to_own()


shared = _Shared()
forward = Stream()  # dropout and the like, inside the wrapped model
loading = Stream(epoch=0)  # augmentation, in the process that fetches the samples


def _cuda_device() -> torch.device | None:
    device = world.device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return device if device is not None and device.type == "cuda" else None


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, NumPy and torch (CPU and CUDA)."""
    twisters.seed(seed)
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
    with shared:
        if world.is_main():
            told = _pack(capture(_cuda_device())), [bytes(generator.get_state().tolist()) for generator in generators]
            _broadcast(pickle.dumps(told, protocol=4))
        else:
            state, own = pickle.loads(_broadcast(b""))
            restore(_unpack(state), _cuda_device())
            for generator, main in zip(generators, own):
                generator.set_state(_as_tensor(main))


def _pack(state: State) -> Any:
    cuda = None if state.cuda is None else bytes(state.cuda.tolist())
    numpy = None if state.numpy is None else tuple(state.numpy)
    return bytes(state.torch.tolist()), tuple(state.python), numpy, cuda


def _unpack(told: Any) -> State:
    main, python, numpy, cuda = told
    return State(
        _as_tensor(main),
        twisters.State(*python),
        None if numpy is None else twisters.State(*numpy),
        None if cuda is None else _as_tensor(cuda),
    )


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


_SLOT = 16384  # holds the three states (about 10 kB) in one broadcast; a larger one takes a second


def _broadcast(data: bytes) -> bytes:
    """Rank 0's `data`, on every rank."""
    slot = torch.zeros(_SLOT, dtype=torch.uint8)
    head = len(data).to_bytes(8, "little") + data[: _SLOT - 8]
    slot[: len(head)] = _as_tensor(head)
    dist.broadcast(slot, src=0)
    received = bytes(slot.tolist())
    size = int.from_bytes(received[:8], "little")
    if size <= _SLOT - 8:
        return received[8 : 8 + size]
    whole = _as_tensor(data) if data else torch.zeros(size, dtype=torch.uint8)
    dist.broadcast(whole, src=0)
    return bytes(whole.tolist())
