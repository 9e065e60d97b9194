"""Who this process is among the ranks, and their one kind of message, which is checked."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from . import codec, links, place

c10d: Any = dist  # what groups are made of by hand isn't declared
#: Bytes of a tensor that travels inside a message.
SMALL = 32 << 10
#: The groups' own time-outs: `hangs` has one, which knows what is waited for, and when a debugger is at work.
NEVER = timedelta(days=365)
ADVICE = (
    "Each rank must run every line: what decides on the way there has to be the same on all of them "
    "(ddp.broadcast gives all ranks rank 0's value)"
)


class Divergence(RuntimeError):  # noqa: N818 - users know it by this name
    """The ranks stand at different lines of the script, or hold different values there."""


class ThreadError(RuntimeError):
    """What takes all ranks is done in a thread: the program ends, unless it is caught."""


class PeerError(RuntimeError):
    """Another rank has ended, or failed; this one is not to blame."""


class World:
    """A rank's state: one object, `world`, that everything else asks.

    Attributes:
        rank, local_rank: as torchrun counts them; 0 before the first wrap, in the process that was started.
        local_size: the number of ranks on this machine.
        size: the number of ranks, as it is by now; 1 before the first wrap.
        device: where this rank's replicas are.
        store: the ranks' key-value store, for what must not be a collective; None as long as there is nobody else.
        groups: process groups by device type, and "sums" for gradients; None as long as this process is alone. They are
            the runtime's own: `torch.distributed.is_initialized()` stays False, as in the original.
        waits: what this rank waits for, at which line, and whether for ranks that are behind it, innermost last;
            empty while it works.
    """

    def __init__(self) -> None:
        self.rank = self.local_rank = 0
        self.size = self.local_size = 1
        self.launched = 0  # ranks that a launcher has started on this machine
        self.device = torch.device("cpu")
        self.store: Any = None
        self.groups: dict[str, Any] | None = None
        self.links: links.Links | None = None
        self.pid = os.getpid()
        self.count = 0  # messages so far
        self.met = 0  # those of them that are over for this rank
        self.waits: list[tuple[str, str, bool]] = []
        self.passed = 0  # how often it has got what it waited for
        self.agreed: list[tuple[str, Any, str]] = []  # to be compared with the next message
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()  # that are wrapped
        self.signals: Callable[[list[Any]], Any] = lambda told: None  # handles those of which any rank has told
        self.noted: dict[int, float] = {}  # signals to be told of
        self.left_at = ""  # the line at which the script has ended
        self.raised = ""  # what a forward has raised since the last message, for ranks that come apart by it

    def meet(self, store: Any, rank: int, size: int, device: torch.device, shares: bool = False) -> None:
        """Make the groups of `size` ranks. A collective of them all.

        Args:
            store: in which nobody else makes groups.
            device: this rank's.
            shares: whether ranks share a CUDA device, which NCCL doesn't take (gloo does).
        """
        self.store, self.rank, self.size, self.device, self.pid = store, rank, size, device, os.getpid()
        self.local_size = self.launched or size
        if size == 1:
            return

        def group(name: str, kind: Any, options: Any) -> Any:
            return kind(c10d.PrefixStore(name, store), rank, size, options)

        gloo = c10d.ProcessGroupGloo
        with waiting("the other ranks at the first wrap"):
            self.links = links.connect(store, rank, size)
            # Gradients have one of their own: a rank that has come apart must not take a sum for something else.
            groups = {"cpu": group("gloo", gloo, NEVER), "sums": group("sums", gloo, NEVER)}
            groups["cuda"] = groups["cpu"]
            if device.type == "cuda" and not shares:
                nccl = c10d.ProcessGroupNCCL
                groups["cuda"] = group("nccl", nccl, nccl.Options())
                groups["sums"] = group("nccl/sums", nccl, nccl.Options())
        self.groups = groups

    @property
    def alone(self) -> bool:
        """Whether there is no other rank; so it is in a forked child, too, such as a loader's worker."""
        return self.groups is None or self.pid != os.getpid()


world = World()


@contextmanager
def waiting(what: str, ahead: bool = False) -> Iterator[None]:
    """Around what other ranks end: `hangs` tells what this rank waits for, and where.

    Args:
        ahead: whether these are behind it, and this rank doesn't stand in a message with them.
    """
    world.waits.append((what, place.line(), ahead))
    try:
        yield
    finally:
        world.waits.pop()
        world.passed += 1


def agree(what: str, value: Any, advice: str = "") -> None:
    """Compare a plain value with the other ranks', together with the next message. No collective.

    What ranks do alike, they tell alike, in the same order. Where they don't, that message raises `Divergence`, with
    `advice` if there is one of its own.
    """
    if not world.alone:
        world.agreed.append((f"{what} at {place.line()}", value, advice))


class Told(NamedTuple):
    """What a rank has told: a value, and tensors; of one that was too large to come along, its shape (a list)."""

    value: Any
    tensors: list[Any]


def exchange(kind: str, value: Any = None, tensors: Sequence[torch.Tensor] = ()) -> list[Told]:
    """What each rank tells, on every rank. A collective, and the only one of its kind: ranks that meet elsewhere end.

    Args:
        kind: what this is, for errors and the report of hangs.
        value: as `codec.dumps` takes it.
        tensors: those of the CPU up to `SMALL` travel along.

    Raises:
        Divergence: the ranks have come apart.
        PeerError: another rank has.
        ThreadError: this thread isn't the main one (autograd's may be: the main one waits for them).
    """
    if world.alone:
        return [Told(value, list(tensors))]
    if type(threading.current_thread()) not in _MAIN:
        raise ThreadError(
            f"{kind} at {place.line()} is in a thread of its own, where the ranks can't meet: do it in the main thread "
            "and hand over what comes of it (`x = x.clone()` makes a batch from a loader an ordinary tensor)"
        )
    world.count += 1
    inside: list[torch.Tensor] = []
    text = codec.dumps(value, inside)
    small = [t.device.type == "cpu" and t.numel() * t.element_size() <= SMALL for t in tensors]
    sent = [*inside, *(t for t, is_small in zip(tensors, small) if is_small)]
    rest = [[] if is_small else [*t.shape] for t, is_small in zip(tensors, small)]
    agreed, world.agreed = world.agreed, []
    at, noted, raised = place.line(), [*world.noted], world.raised
    world.raised = ""
    message = codec.packed([world.count, kind, at, agreed, noted, text, len(inside), rest, small, raised], sent)
    with waiting(kind):
        found = [codec.unpacked(each) for each in _all_gather(message)]
    world.met = world.count
    _compare([head for head, _ in found])
    told = [_told(head, came) for head, came in found]
    if any(head[4] for head, _ in found):
        world.signals([head[4] for head, _ in found])
    return told


_MAIN = (type(threading.main_thread()), threading._DummyThread)  # autograd's threads are unknown to Python


def _compare(heads: Sequence[Any]) -> None:
    are_apart = any(head[:3] != heads[0][:3] for head in heads)
    entries = itertools.zip_longest(*(head[3] for head in heads), fillvalue=["", "", ""])
    first = next((each for each in entries if any(one != each[0] for one in each)), None)
    # What all have told of, and differs, came ahead of what has led them apart.
    if first is not None and (not are_apart or len({what for what, *_ in first}) == 1):
        name, _, advice = next(each for each in first if each[0])
        told = (value if what == name else "nothing" for what, value, _ in first)
        values = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(told))
        raise Divergence(f"{name} differs between the ranks: {values}. {advice or ADVICE}")
    if are_apart:
        where = "; ".join(f"rank {rank} at {head[2]}: {head[1]}{head[-1]}" for rank, head in enumerate(heads))
        raise Divergence(f"the ranks have come apart: {where}. {ADVICE}")


def _told(head: Sequence[Any], came: list[torch.Tensor]) -> Told:
    *_, text, inside, rest, small, _ = head
    after = iter(came[inside:])
    tensors = [next(after) if is_small else shape for is_small, shape in zip(small, rest)]
    return Told(codec.loads(text, came[:inside]), tensors)


def _all_gather(message: bytes) -> list[bytes]:
    """Every rank's message. Over sockets where all are on this machine; what has no room there, by the group."""
    if world.links is None:
        return _gathered(message, None)
    try:
        found = world.links.all_gather(len(message).to_bytes(8, "little") + message[: links.MOST])
    except links.PeerClosedError as error:
        raise PeerError(f"rank {error.rank} has ended, and this one ({place.line()}) was to meet it") from error
    sizes = [int.from_bytes(each[:8], "little") for each in found]
    if max(sizes) <= links.MOST:
        return [each[8:] for each in found]
    rest = _gathered(message[links.MOST :], [max(0, size - links.MOST) for size in sizes])
    return [bytes(each[8:]) + more for each, more in zip(found, rest)]


def _gathered(message: bytes, sizes: list[int] | None) -> list[bytes]:
    if sizes is None:
        sizes = [int(row) for row in all_gather(torch.tensor([len(message)]))]
    row = torch.zeros(max(sizes), dtype=torch.uint8)
    codec.fill(row[: len(message)], message)
    return [codec.memory(each)[:size] for each, size in zip(all_gather(row), sizes)]


# ---- tensors ---------------------------------------------------------------------------------------------------------
# Out of inference mode: gloo writes from a thread of its own, which inference tensors don't allow.


def group_of(device: torch.device) -> Any:
    """The group by which tensors of a device travel."""
    assert world.groups is not None
    return world.groups["cuda" if device.type == "cuda" else "cpu"]


@torch.inference_mode(False)
@torch.no_grad()
def all_gather(row: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's contiguous tensor, all of one shape. A collective."""
    parts = [torch.empty_like(row) for _ in range(world.size)]
    with waiting("rows of a tensor"):
        group_of(row.device).allgather([parts], [row]).wait()
    return parts


@torch.inference_mode(False)
@torch.no_grad()
def gather_rows(rows: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> torch.Tensor:
    """The ranks' rows along `dim`, one after the other, without autograd. A collective; of a size 0 nothing is sent.

    Args:
        rows: this rank's, as many as its size says, or more.
        sizes: each rank's.
    """
    if rows.is_complex():
        return torch.view_as_complex(gather_rows(torch.view_as_real(rows.resolve_conj()), sizes, dim)).detach()
    last = rows.dim() == 4 and not rows.is_contiguous() and rows.is_contiguous(memory_format=torch.channels_last)
    own = rows.detach().resolve_neg().movedim(dim, 0)[: sizes[world.rank]]
    missing = max(sizes) - len(own)
    own = torch.cat([own, own.new_zeros([missing, *own.shape[1:]])]) if missing else own.contiguous()
    kind, shape = own.dtype, own.shape
    # By its memory: where there is one row, or one number, a contiguous tensor's strides may be anything.
    flat = own.as_strided([own.numel()], [1]).view(torch.uint8) if own.numel() else own.view(-1)
    parts = [part.view(kind).view(shape)[:size] for part, size in zip(all_gather(flat), sizes)]
    whole = torch.cat(parts).movedim(0, dim)
    whole = whole.contiguous(memory_format=torch.channels_last) if last else whole.contiguous()
    return whole.detach()  # no view to autograd: the script may write into it while gradients are recorded


_AT_ONCE = 25 << 20  # bytes


@torch.inference_mode(False)
@torch.no_grad()
def broadcast_(tensors: Sequence[torch.Tensor]) -> None:
    """Rank 0's numbers into these tensors, without bumping their versions. A collective for each type and device."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.layout == torch.strided and tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.data)
    for (_, device), some in kinds.items():
        while some:
            now: list[torch.Tensor] = []
            size = 0
            while some and (not now or size + some[0].nbytes <= _AT_ONCE):
                size += some[0].nbytes
                now.append(some.pop(0))
            _broadcast(now, device)


def _broadcast(some: list[torch.Tensor], device: torch.device) -> None:
    flat = torch.cat([each.resolve_conj().resolve_neg().reshape(-1) for each in some])
    options = c10d.BroadcastOptions()
    options.rootRank = 0
    with waiting("rank 0's parameters or buffers"):
        group_of(device).broadcast([flat.view(torch.uint8)], options).wait()
    if world.rank:
        torch._foreach_copy_(
            some, [part.view_as(each) for part, each in zip(torch.split(flat, [e.numel() for e in some]), some)]
        )
