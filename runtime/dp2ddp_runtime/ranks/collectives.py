"""Collectives on tensors, on whichever device this process group's backends can send them from; and checksums.

Those of every step are called on the process group itself: `torch.distributed`'s functions check and log each call,
which between two layers takes longer than sending some kilobytes does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

from ..base import world
from ..base.waiting import Waiting
from . import direct, group

_DRAIN = 0.05  # seconds
_PIECE = 1 << 20  # numbers of a checksum at once: each takes 24 bytes meanwhile
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def let_threads_go() -> None:
    """Threads of gloo that have just run a collective still need the interpreter, to free its tensors."""
    time.sleep(_DRAIN)


def transport_device(device: torch.device) -> torch.device:
    """The device on which tensors of `device` can travel with this process group's backends."""
    config = group.backends()
    if device.type == "cuda":
        return device if "cuda:nccl" in config else torch.device("cpu")
    return device if "cpu:" in config else world.device()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gradient, lazy conjugation and gaps between its elements."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A `plain` tensor's memory, of no class but torch's: others have a say in what is done with theirs."""
    # One row of a column may be contiguous with any stride, which `view` doesn't take.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    with torch._C.DisableTorchFunctionSubclass():
        return flat.view(torch.uint8)


def all_gather(row: torch.Tensor) -> torch.Tensor:
    """Every rank's row of bytes, one under the other, on the row's device. No collective if there is nothing in it.

    Small ones on the CPU go straight from rank to rank.
    """
    if direct.takes(row.device, len(row)):
        return direct.all_gather(row)
    sent = row.to(transport_device(row.device))
    rows = sent.new_empty((world.world_size(), len(row)))
    if not len(row):
        return rows.to(row.device)
    with Waiting("rows", sent.device):
        if sent.device.type != "cpu":
            dist.all_gather_into_tensor(rows, sent, group.whole())
        else:
            group.whole().allgather([list(rows.unbind(0))], [sent]).wait()
    return rows.to(row.device)


def broadcast(row: torch.Tensor, source: int) -> torch.Tensor:
    """A rank's row of bytes. A collective. On the others `row` is as long, and may be overwritten."""
    if source == 0 and direct.takes(row.device, len(row), direct.MOST_OF_ONE):
        direct.broadcast(row)
        return row
    sent = row.to(transport_device(row.device))
    with Waiting("a rank's bytes", sent.device):
        group.whole().broadcast(sent, source).wait()
    return sent.to(row.device)


_AT_ONCE = 250 << 20  # bytes, as DistributedDataParallel sends buffers
_KNOWN = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)  # to all backends


class Broadcast:
    """Rank 0's numbers for tensors, many at once, without bumping their versions. Can be sent again and again.

    Args:
        tensors: they must stay where they lie. Sparse ones stay as they are: ranks have made them alike.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        #: Of each device: the tensors, and their room in a message, as such and whole; none if they travel in place.
        self._sends: list[tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]] = []
        groups: dict[torch.device, list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.numel() and tensor.layout == torch.strided:
                groups.setdefault(tensor.device, []).append(tensor.data)
        for device, members in groups.items():
            is_small = direct.takes(device, sum(each.nbytes for each in members), direct.MOST_OF_ONE)
            known = _KNOWN if device.type == "cpu" else (*_KNOWN, torch.bfloat16)
            is_known = device == transport_device(device) and all(each.dtype in known for each in members)
            self._sends.append((members, [], None) if is_known and not is_small else (members, *_room(members)))

    # Out of inference mode: gloo writes from a thread of its own, which inference tensors don't allow.
    @torch.inference_mode(False)
    @torch.no_grad()
    def send(self) -> None:
        """Overwrite the tensors. A collective."""
        for members, parts, room in self._sends:
            if room is None:
                with Waiting("rank 0's parameters or buffers", members[0].device):
                    dist._broadcast_coalesced(group.whole(), members, _AT_ONCE, 0)  # type: ignore[attr-defined]
                continue
            if world.is_main():
                torch._foreach_copy_(parts, members)
                broadcast(room, 0)
            else:
                room.copy_(broadcast(room, 0))
                torch._foreach_copy_(members, parts)


@torch.inference_mode(False)
def _room(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Memory for all of them, one behind the other, each where numbers may begin: as tensors like them, and whole."""
    sizes = [-(-each.nbytes // 16) * 16 for each in tensors]
    room = torch.empty(sum(sizes), dtype=torch.uint8, device=tensors[0].device)
    places = zip(torch.split(room, sizes), tensors)
    return [place[: each.nbytes].view(each.dtype).view(each.shape) for place, each in places], room


@torch.inference_mode(False)
@torch.no_grad()
def gather_rows(rows: torch.Tensor, sizes: Sequence[int], dim: int) -> torch.Tensor:
    """All ranks' rows along `dim`, of which each has its size, in rank order, without autograd. A collective for much
    data: it travels once, from where it lies to where it is wanted. Of a rank with the size 0 nothing is sent.
    """
    own = plain(rows.movedim(dim, 0)[: sizes[world.rank()]])
    missing = max(sizes) - len(own)
    padded = torch.cat([own, own.new_zeros([missing, *own.shape[1:]])]) if missing else own
    shares = all_gather(bytes_of(padded)).view(-1).view(own.dtype).view([len(sizes), *padded.shape])
    whole = torch.cat([share[:size].movedim(0, dim) for share, size in zip(shares, sizes)], dim)
    channels_last = dim == 0 and rows.dim() == 4 and not rows.is_contiguous()
    if channels_last and rows.is_contiguous(memory_format=torch.channels_last):
        return whole.contiguous(memory_format=torch.channels_last)
    return whole


@torch.inference_mode(False)
@torch.no_grad()
def pick_rows(rows: torch.Tensor, sizes: Sequence[int], numbers: Sequence[int]) -> torch.Tensor:
    """This rank's rows of `whole[numbers]`, rank 0's on a rank without any: each rank gets what it needs alone.

    `rows` are this rank's of the whole batch, along dimension 0, of which each rank has its size.
    """
    starts = list(itertools.accumulate(sizes, initial=0))
    owner = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    wanted = [numbers[start : start + size] if size else numbers[: sizes[0]] for start, size in zip(starts, sizes)]
    me = world.rank()
    mine = [[number - starts[me] for number in each if owner[number] == me] for each in wanted]
    theirs = sorted(range(len(wanted[me])), key=lambda place: owner[wanted[me][place]])  # stable: in each one's order
    counts = [sum(owner[number] == rank for number in wanted[me]) for rank in range(len(sizes))]
    sent = plain(rows)[list(itertools.chain(*mine))].to(transport_device(rows.device))
    received = sent.new_empty([len(theirs), *rows.shape[1:]])
    width = received[:1].numel() * received.element_size()
    splits = [count * width for count in counts], [len(each) * width for each in mine]
    with Waiting("rows in another order", sent.device):
        dist.all_to_all_single(bytes_of(received), bytes_of(sent), *splits, group.whole())
    picked = torch.empty_like(received)
    picked[theirs] = received
    return picked.to(rows.device)


@torch.inference_mode(False)
@torch.no_grad()
def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Two sums over the bits of a tensor, the second one depending on their order. On the CPU; shape (2,), int64."""
    memory = bytes_of(plain(tensor))
    words = memory.view(torch.int16) if tensor.element_size() % 2 == 0 else memory
    sums = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, len(words), _PIECE):
        values = words[start : start + _PIECE].to(torch.int64)
        places = torch.arange(start + 1, start + 1 + len(values), device=values.device) % 65521
        sums += torch.stack([values.sum(), (values * places).sum()])
    return sums.cpu()


@torch.inference_mode(False)
@torch.no_grad()
def bit_sums(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The sums of dense tensors' bits, taken as whole numbers; they are looked at together."""
    flat = [plain(each).view(-1) for each in tensors.values()]
    sums = [each.view(_BITS.get(each.element_size(), torch.int64)).sum(dtype=torch.int64) for each in flat]
    return dict(zip(tensors, torch.stack([each.to(sums[0].device) for each in sums]).tolist() if sums else ()))
