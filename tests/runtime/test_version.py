"""A runtime that is older than the dp2ddp by which a script was converted."""

from __future__ import annotations

import dp2ddp_runtime as ddp
import pytest


def test_a_name_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(
        AttributeError, match=rf"dp2ddp_runtime {ddp.__version__} has no 'later': .* install the dp2ddp"
    ):
        ddp.later()
    with pytest.raises(ImportError):
        from dp2ddp_runtime import later  # noqa: F401


def test_what_python_asks_for_is_not_there_in_the_usual_way() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dp2ddp_runtime' has no attribute '__wrapped__'$"):
        ddp.__wrapped__  # noqa: B018
    assert all(hasattr(ddp, name) for name in ddp.__all__)
