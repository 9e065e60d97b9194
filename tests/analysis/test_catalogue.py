"""What functions of libraries do: each line of the catalogue can be read and reached, and the user's count first."""

from __future__ import annotations

from dp2ddp.analysis.catalogue import MAIN_ONLY, Catalogue, _known


def test_no_line_stands_behind_another_that_fits() -> None:
    catalogue, functions = Catalogue(), _known()["functions"]
    assert len(functions) > 50
    for name, does in functions.items():
        assert catalogue.does(name.replace("*", "any"), does), name


def test_what_the_user_adds_counts_first() -> None:
    catalogue = Catalogue(["mylib.dump=writes", "wandb.Table=names"])
    assert catalogue.does("mylib.dump", *MAIN_ONLY)
    assert catalogue.does("wandb.Table", "names")
    assert catalogue.does("wandb.log", "reports")
    assert not catalogue.does("datetime.timedelta", "names")
    assert not catalogue.does(None, *MAIN_ONLY)
