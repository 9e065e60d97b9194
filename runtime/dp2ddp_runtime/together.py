"""Whole batches for every rank, from a loader without workers: each rank loads all of them, or its share.

Sharing the work costs a collective for each batch, and more time than it saves where samples are cheap. So the first
batches are a trial: every rank loads all of them, they are gathered nevertheless, and both are timed. Time only decides
about cost. What the batches hold is the same either way: ranks load alone only what came out equal on all of them (a
dataset may have random numbers that no rank shares), and a checksum of what they load is compared from time to time.
"""

from __future__ import annotations

import ctypes
import enum
import logging
import time
import zlib
from typing import Any, NamedTuple

import torch

from . import columns, nesting, samplers, world
from .exchange import Exchange
from .payload import Part, bytes_of, plain
from .source import Loaded, Source

_log = logging.getLogger("dp2ddp_runtime")  # at level DEBUG: scripts log what is INFO to their own files

_TRIED = 5  # batches
_COMPARED_EVERY = 32  # batches


class Verdict(NamedTuple):
    """What a rank found at one batch of the trial."""

    equal: bool  # it loaded the same as all ranks together
    drew: bool
    loading: float  # seconds, for all of the batch
    checking: float  # seconds, for its checksum
    gathering: float  # seconds


class Way(enum.Enum):
    """How the ranks come by a batch."""

    TRIAL = "each loads all of it, and they compare"
    ALONE = "each loads all of it"
    SHARED = "each loads its share, which are gathered"
    ONE_OF_MANY = "each loads all of it, and their shares of that are gathered"


class Together:
    """Loads the whole batches of one loader. The ranks decide alike, from what all of them told.

    Args:
        name: the loader's, for messages.
    """

    def __init__(self, name: str) -> None:
        self.way = Way.TRIAL
        self._name = name
        self._exchange = Exchange()
        self._verdicts: list[Verdict] = []
        self._equal = False
        self._sums = Checksums(name)

    def next(self, source: Source) -> tuple[Any, samplers.Cut]:
        """The next batch, and how it was cut.

        Raises:
            StopIteration: there is none.
            RuntimeError: the ranks have loaded different batches by themselves.
        """
        if self.way is Way.TRIAL:
            return self._try(source)
        if self.way is Way.ALONE:
            return self._load_alone(source)
        if self.way is Way.SHARED:
            return self._load_share(source)
        return self._from_all(source.load_all())

    def _try(self, source: Source) -> tuple[Any, samplers.Cut]:
        """Load, gather and compare. The verdicts travel with the batch after the last that was tried."""
        done = len(self._verdicts) == _TRIED
        start = time.perf_counter()
        mine = source.load_all(watch=True)
        loaded = time.perf_counter()
        share = columns.own_rows(mine.data, mine.cut)
        begun = time.perf_counter()
        gathered = columns.Gathering(share, mine.cut, self._exchange, tuple(self._verdicts) if done else None).wait()
        ended = time.perf_counter()
        if done:
            self._decide(gathered.told)
        else:
            equal = same(mine.data, gathered.batch)
            compared = time.perf_counter()
            checksum(mine.data, 0)
            checked = time.perf_counter() - compared
            self._verdicts.append(Verdict(equal, mine.drew, loaded - start, checked, ended - begun))
        return gathered.batch, mine.cut

    def _decide(self, told: list[tuple[Verdict, ...]]) -> None:
        self._equal = all(verdict.equal for verdicts in told for verdict in verdicts)
        if any(verdict.drew for verdicts in told for verdict in verdicts):
            self._draws()
            return
        # The shortest times are the truest: a rank that waits for a busy processor, or for another rank, measures that.
        loading = max(min(verdict.loading for verdict in verdicts) for verdicts in told)
        checking = max(min(verdict.checking for verdict in verdicts) for verdicts in told)
        gathering = min(verdict.gathering for verdicts in told for verdict in verdicts)
        saved = loading * (1 - 1 / world.world_size())
        self.way = Way.ALONE if self._equal and saved + checking <= gathering else Way.SHARED

    def _draws(self) -> None:
        """Go on as a dataset needs that draws from the shared stream: what it draws decides on what follows."""
        _log.debug("%s loads every sample on every rank: its dataset draws random numbers", self._name)
        self.way = Way.ALONE if self._equal else Way.ONE_OF_MANY

    def _load_alone(self, source: Source) -> tuple[Any, samplers.Cut]:
        try:
            mine = source.load_all()
        except StopIteration:
            self._sums.compare()
            raise
        self._sums.add(mine.data)
        return mine.data, mine.cut

    def _load_share(self, source: Source) -> tuple[Any, samplers.Cut]:
        mine = source.load_share(watch=True)
        gathered = columns.Gathering(mine.data, mine.cut, self._exchange, mine.drew).wait()
        if not any(gathered.told):
            return gathered.batch, mine.cut
        # Only some samples draw, and none did in the trial. What was drawn now came from the ranks' own streams.
        self._draws()
        return self._from_all(source.reload_all(mine))

    def _from_all(self, mine: Loaded) -> tuple[Any, samplers.Cut]:
        share = columns.own_rows(mine.data, mine.cut)
        return columns.Gathering(share, mine.cut, self._exchange).wait().batch, mine.cut


class Checksums:
    """A checksum of all that this rank has loaded alone, compared with the others' every so many batches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sum = 0
        self._uncompared = 0
        self._exchange = Exchange()

    def add(self, batch: Any) -> None:
        """Take a batch into account. A collective, at times: all ranks must have got to the same batch."""
        self._sum = checksum(batch, self._sum)
        self._uncompared += 1
        if self._uncompared == _COMPARED_EVERY:
            self.compare()

    def compare(self) -> None:
        """Compare what wasn't yet. A collective.

        Raises:
            RuntimeError: the ranks' batches differed.
        """
        if not self._uncompared:
            return
        self._uncompared = 0
        parts = self._exchange(Part([], self._sum), torch.device("cpu"))
        if len({part.note for part in parts}) > 1:
            raise RuntimeError(
                f"the ranks got different batches from a {self._name}, after its first ones were the same: its dataset "
                "has random numbers of its own, which no rank shares. Seed that generator alike on all ranks, for "
                "instance with torch.initial_seed()"
            )


def same(one: Any, other: Any) -> bool:
    """Whether two batches are the same, bit for bit, and can be compared by their checksums, too."""
    ours, theirs = nesting.leaves(one, columns.is_column), nesting.leaves(other, columns.is_column)
    return len(ours) == len(theirs) and all(map(_same_column, ours, theirs))


def _same_column(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return columns.is_column(one) and type(one) is type(other) and bool(one == other)
    if (one.dtype, one.shape, one.device, one.layout) != (other.dtype, other.shape, other.device, other.layout):
        return False
    if one.layout != torch.strided or one.device.type != "cpu":
        return False
    return torch.equal(bytes_of(plain(one)), bytes_of(plain(other)))


def checksum(batch: Any, start: int) -> int:
    """CRC-32 of all tensors' and strings' contents, going on from another one."""
    for column in nesting.leaves(batch, columns.is_column):
        if isinstance(column, torch.Tensor):
            memory = plain(column)
            size = memory.numel() * memory.element_size()
            start = zlib.crc32((ctypes.c_char * size).from_address(memory.data_ptr()), start) if size else start
        else:
            start = zlib.crc32(repr(column).encode(), start)
    return start
