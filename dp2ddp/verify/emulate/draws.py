"""What a sample draws is made a function of the sample: it doesn't matter which worker of which rank loads it.

Which worker loads which batch is chance, or the number of ranks. So in workers every sample is loaded with generators
that are seeded from its index and from how often its data set was gone through, on both sides: both train on the same
samples. (Without workers samples draw from the script's own stream, whose numbers are compared as they are.)
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ClassVar, cast

import torch
from dp2ddp_runtime import streams
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch, worker

_BASE_SEED = 8  # of a worker's arguments; what is given there is the number of the pass
_worker_loop: Callable[..., None] = worker._worker_loop
_fetch_as_it_is: Callable[..., Any] = fetch._MapDatasetFetcher.fetch


class _Draws:
    """What samples draw by, in this process, beside their index.

    Attributes:
        passes: how often the data set was gone through; None: they draw as they do.
        moved: whether the loader's `worker_init_fn` has seeded anything. Which numbers it gives is a worker's business,
            whose samples are chance. That it does decides what is drawn.
    """

    passes: ClassVar[int | None] = None
    moved: ClassVar[bool] = False


def install(everywhere: bool = False) -> None:
    """From now on, and for the rest of the process, samples that workers load draw by their index.

    Those that are loaded `everywhere` do for scripts whose ranks don't draw as one process does.
    """
    make, start = DataLoader.__init__, dataloader._BaseDataLoaderIter.__init__
    seen: dict[int, tuple[Any, int]] = {}  # by id; the data set is kept, so that no other one gets its id

    @wraps(make)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        make(loader, *args, **kwargs)
        if loader.worker_init_fn is not None:
            loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn)

    def begin(iterator: Any, loader: Any) -> None:
        start(iterator, loader)  # which draws the base seed
        passes = seen.get(id(loader.dataset), (None, 0))[1] + 1
        seen[id(loader.dataset)] = loader.dataset, passes
        iterator._base_seed = passes
        if everywhere:
            _Draws.passes = passes

    loader_class, iterator_class, working = cast(Any, (DataLoader, dataloader._BaseDataLoaderIter, worker))
    loader_class.__init__, iterator_class.__init__, working._worker_loop = init, begin, _work
    fetch._MapDatasetFetcher.fetch = _fetch  # type: ignore[method-assign]


def _start_worker(begin: Callable[[int], None], number: int) -> None:
    """Calls a `worker_init_fn` of the script's."""
    before = streams.Position()
    begin(number)
    _Draws.moved = before.moved


def _work(*arguments: Any) -> None:
    """What a worker runs. In one that isn't forked nothing is installed yet."""
    fetch._MapDatasetFetcher.fetch = _fetch  # type: ignore[method-assign]
    _Draws.passes = arguments[_BASE_SEED]
    _worker_loop(*arguments)


def _fetch(fetcher: Any, order: Any) -> Any:
    dataset = fetcher.dataset
    if _Draws.passes is None:
        return _fetch_as_it_is(fetcher, order)
    generators = streams.generators_in(dataset)
    several = getattr(dataset, "__getitems__", None)
    one = (lambda index: several([index])[0]) if several else dataset.__getitem__
    if not fetcher.auto_collation:
        data = _seeded(generators, order, lambda: dataset[order])
    else:
        data = [_seeded(generators, index, partial(one, index)) for index in order]
    # A collate_fn that draws is given the whole batch on every rank.
    batch = [*map(_plain, order)] if fetcher.auto_collation else order
    return _seeded(generators, ("batch", batch), lambda: fetcher.collate_fn(data))


def _seeded(own: Sequence[Any], what: Any, load: Callable[[], Any]) -> Any:
    """What `load` returns, drawing by `what`. The generators, also the data set's `own`, have their states back."""
    before = streams.Position(own)
    number = zlib.crc32(repr((_Draws.passes, _Draws.moved, _plain(what))).encode())
    try:
        random.seed(number)
        torch.default_generator.manual_seed(number)  # not by `torch.manual_seed`, at which ranks' streams start anew
        if streams.np is not None:
            streams.np.random.seed(number)
        for generator in own:
            streams.reseed(generator, number)
        return load()
    finally:
        before.go_back()


def _plain(index: Any) -> Any:
    """The same text for an index, whatever type of number it is."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return index
