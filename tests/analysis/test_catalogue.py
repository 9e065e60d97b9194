"""What functions of libraries do: each line of the catalogue can be read, reached, and says what stands there."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

from dp2ddp.analysis.catalogue import Catalogue, Function, _known, entry


def test_no_line_stands_behind_another_that_fits() -> None:
    catalogue, (functions, _) = Catalogue(), _known()
    assert len(functions) > 100
    for name, function in functions.items():
        assert catalogue.of(name.replace("*", "any")) == function, name


def _installed() -> Iterator[tuple[str, Function]]:
    for name, function in _known()[0].items():
        module = name.rpartition(".")[0]
        if function.file is not None and "*" not in name and module.split(".")[0] in ("os", "shutil", "torch", "numpy"):
            yield name, function


@pytest.mark.parametrize(("name", "function"), list(_installed()))
def test_the_argument_that_names_the_file_is_called_so(name: str, function: Function) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        called = inspect.signature(getattr(importlib.import_module(module), attribute))
    except ValueError:
        pytest.skip("written in C, without a signature")
    assert function.file is not None
    position, keyword = function.file
    assert list(called.parameters)[position] == keyword


def test_what_the_user_adds_counts_first() -> None:
    catalogue = Catalogue(["mylib.dump=writes 1:path native", "wandb.config=paths", "numpy.save=reads"])
    assert catalogue.of("mylib.dump") == Function("writes", (1, "path"), 1, frozenset({"native"}))
    assert catalogue.does("wandb.config", "paths")
    assert catalogue.does("numpy.save", "reads")
    assert catalogue.does("wandb.log", "reports")
    assert entry("h5py.Group=opens 0:name mode:3")[1].mode == 3
