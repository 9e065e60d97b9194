"""Reads a batch ahead of the script, so that the ranks' shares are gathered while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

from . import columns, samplers
from .collectives import group_beside
from .exchange import Exchange


class Ahead:
    """The whole batches of one iteration over a loader with workers.

    All ranks start the same gatherings in the same order, on a group that carries nothing else. So the script's own
    collectives may come in between, one iteration may be left for another, and a rank whose loading failed
    keeps nobody waiting. What reading ahead raises comes where the script asks for that batch.

    Args:
        batches: the loader's own iterator, over this rank's shares.
        cuts: how the batches were cut, in order.
    """

    def __init__(self, batches: Iterator[Any], cuts: deque[samplers.Cut]) -> None:
        self._batches = batches
        self._cuts = cuts
        self._exchange = Exchange(group_beside())
        self._next: Callable[[], tuple[Any, samplers.Cut]] | None = None

    def next(self) -> tuple[Any, samplers.Cut]:
        """The next batch, and how it was cut.

        Raises:
            StopIteration: there is none.
            PeerError: another rank could not load its share.
        """
        finish, self._next = self._next or self._begin(), None
        result = finish()
        self._next = self._begin()
        return result

    def _begin(self) -> Callable[[], tuple[Any, samplers.Cut]]:
        """Load this rank's share of the next batch, and start gathering it. What is returned waits for that."""
        try:
            share = next(self._batches)
        except StopIteration:
            return _end
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the script's to see, in its time
            return self._begin_without(error)
        cut = self._cuts.popleft()
        gathering = columns.Gathering(share, cut, self._exchange)
        return lambda: (gathering.wait().batch, cut)

    def _begin_without(self, error: Exception) -> Callable[[], Any]:
        cut = self._cuts.popleft() if self._cuts else samplers.Cut(None, 1)
        pending = columns.start_without(error, cut, self._exchange)

        def finish() -> Any:
            pending.wait()
            raise error

        return finish


def _end() -> Any:
    raise StopIteration
