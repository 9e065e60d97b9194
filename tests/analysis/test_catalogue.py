"""What functions of libraries do: each line of the catalogue can be read and reached, and the user's count first."""

from __future__ import annotations

import pytest

from dp2ddp.analysis.catalogue import MAIN_ONLY, Catalogue, _known, entry


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


@pytest.mark.parametrize(
    ("text", "said"),
    [("mylib dump=writes", "no name"), ("mylib.dump=sings", "names, opens, reports, seeds"), ("x", "nothing")],
)
def test_what_can_t_be_read_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        entry(text)
