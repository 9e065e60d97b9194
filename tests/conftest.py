"""Data that tests share, made once a session."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, in each of the workers: they fill the cores

# What torch says of a broken connection names its ends: it looks `::ffff:127.0.0.1` up, which not every server answers.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # else 5 seconds, twice

gc.disable()  # until all is imported: that takes a fifth longer with it

sys.path[:0] = [str(Path(__file__).parent)]
import fixture_data  # noqa: E402
from starts import Warm  # noqa: E402

if TYPE_CHECKING:
    from nursery import Nursery

# Images to train on and to test: odd, so that last batches are ragged and split unevenly over 2 and over 3 ranks.
SMALL, SMALLER = (1207, 301), (307, 101)


#: Tests that share: a process that forks runs, the runs of a tiny script, a pool of ranks (of which there are two).
_SHARING = ("tests/e2e/", "tests/verify/", "batches", "tests/runtime/")
#: Of the runtime's, those that load batches, or are on pretend devices: they take as long as all others.
_LOADING = ("device_copies half_precision loader loop_shapes promises rows_apart workers").split()
_BATCHES = tuple(f"tests/runtime/test_{name}.py" for name in _LOADING)
#: But these start processes of their own: any worker may have each test of the first, and each file of the others.
_BY_TEST = (
    "tests/e2e/test_fixtures.py",
    *(f"tests/runtime/test_{name}.py" for name in ("births", "hangs", "hands", "quiet", "restarts")),
)
_BY_FILE = tuple(f"tests/runtime/test_{name}.py" for name in ("machines", "surroundings"))


#: Whole trainings and real starts: left out by `-m "not slow"`.
_SLOW = (
    "tests/e2e/",
    "tests/benchmarks/",
    *_BY_TEST,
    *_BY_FILE,
    "tests/verify/test_ended.py",
)


def pytest_collection_finish() -> None:
    gc.freeze()  # torch alone is a million objects, which would be looked through again and again
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_SLOW):
            item.add_marker("slow")
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """The longest first, and what goes to the workers test by test last: so they end at about the same time."""
    file, scope = item.nodeid.partition("::")[0], _scope(item.nodeid)
    if scope in _SHARING:
        return _SHARING.index(scope)
    return len(_SHARING) + (0 if file in _BY_FILE else 2 if file in _BY_TEST else 1)


def _scope(nodeid: str) -> str:
    """The tests that have this in common run in one of pytest-xdist's workers."""
    file = nodeid.partition("::")[0]
    if file in _BY_TEST:
        return nodeid
    if file in _BATCHES:
        return "batches"
    folders = _SHARING if file not in _BY_FILE else ()
    return next((folder for folder in folders if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What goes to one of pytest-xdist's workers: all tests that share processes or runs, as each has its own."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    config.option.loadscopereorder = False
    return BySharing(config, log)


@pytest.fixture(scope="session")
def even_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many of scikit-learn's digits as give every fixture ragged last batches that halve evenly: 95 % in seconds.

    Two even shards round as the whole batch does, so float32 can be compared bit by bit; of 18 and 17 samples it
    can't, and BatchNorm with Adam makes 1e-4 of that within 100 steps.
    """
    whole = fixture_data.prepare_sklearn(tmp_path_factory.mktemp("sklearn"))
    subset: Path = fixture_data.digits.subset(whole, tmp_path_factory.mktemp("even"), 1420, 359)
    return subset


@pytest.fixture(scope="session")
def small_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`--data` for a fixture script: 1,207 images to train on and 301 to test, MNIST's where they are at hand."""
    whole = fixture_data.prepare_real(tmp_path_factory.mktemp("digits"))
    target = tmp_path_factory.mktemp("small")
    subset: Path = fixture_data.digits.subset(whole, target, *SMALL)
    return subset


@pytest.fixture(scope="session")
def smaller_digits(small_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first quarter of them."""
    subset: Path = fixture_data.digits.subset(small_digits, tmp_path_factory.mktemp("smaller"), *SMALLER)
    return subset


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where runs are forked from: importing torch is most of a short run."""
    from nursery import Nursery  # with torch, which the codemod's tests have no need of

    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Scripts that are started without importing torch anew: `warm.start(script, *arguments)`."""
    made = Warm(tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def pretended() -> None:
    """Pretend CUDA devices, whose native half takes a minute the first time; else the test is skipped."""
    from pretend_cuda import PretendCudaUnavailableError, build

    try:
        build.compiled()
    except PretendCudaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def quick_starts(nursery: Nursery) -> Iterator[None]:
    """All runs of a test are forked."""
    with nursery.installed():
        yield
