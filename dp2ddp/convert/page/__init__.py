"""The page of a conversion, `--html`: what changed and why, what needs a person, and who does what with N GPUs.

`check` comes before any work; `write` when everything else is done; `on_refusal` around what finds out that an input
can't be converted at all. What the page is made of is `Material`; `compose` makes of it what the template shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dp2ddp import page
from dp2ddp.convert.page.material import Material
from dp2ddp.convert.request import Request
from dp2ddp.errors import BadInput

__all__ = ["Material", "check", "on_refusal", "write"]

_PACKAGE = "dp2ddp.convert.page"


def check(request: Request) -> None:
    """Checks that the page can be written, before any work is done.

    Raises:
        BadInput: it can't, or its place is that of an input or of the output.
    """
    if request.html is None:
        return
    page.check_target(request.html, force=request.force)
    own = os.path.realpath(request.html)
    for other in (*request.inputs, *filter(None, [request.output])):
        if os.path.realpath(other) == own:
            raise BadInput(request.html, what="the page would take the place of an input or of the output")


def write(material: Material) -> None:
    """Writes the page of a conversion.

    Raises:
        BadInput: it can't be written.
    """
    from dp2ddp.convert.page import compose  # with jinja2 and what else only a page needs

    assert material.request.html is not None
    _write(material.request.html, compose.content(material))


@contextmanager
def on_refusal(request: Request) -> Iterator[None]:
    """Where the block finds that the input can't be converted, writes a page that says why, if one is asked for.

    Raises:
        BadInput: the block's, or the page can't be written.
    """
    try:
        yield
    except BadInput as error:
        if request.html is not None:
            from dp2ddp.convert.page import compose

            _write(request.html, compose.refusal(request, error))
        raise


def _write(path: str, content: Mapping[str, object]) -> None:
    styles, scripts = ("convert.css", "code.css"), ("convert.js",)
    page.write(path, page.render(_PACKAGE, "convert.html.j2", content, styles=styles, scripts=scripts))
