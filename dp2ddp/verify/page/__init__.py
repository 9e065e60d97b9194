"""A verdict as a page to look at: `--html`."""

from __future__ import annotations

from dp2ddp import page
from dp2ddp.verify.verdict import Verdict


def written(verdict: Verdict, name: str, command: str, path: str) -> None:
    """Write the page of a verdict.

    Args:
        name: of the script.
        command: with which it was verified.
        path: where to.

    Raises:
        BadInput: it can't be written.
    """
    from dp2ddp.page.rendering import render
    from dp2ddp.verify.page import run_content

    page.write(path, render(__name__, "verify.html.j2", run_content.of(verdict, name, command), styles=["verify.css"]))
