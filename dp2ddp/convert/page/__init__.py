"""The page of a conversion, `--html`: what changed and why, what needs a person, and what each process does.

`check` comes before any work; `write` when everything else is done. `diff_content` makes of a report what the template
shows.
"""

from __future__ import annotations

import os

from dp2ddp import page
from dp2ddp.convert.job import Request
from dp2ddp.convert.reporting import Report
from dp2ddp.errors import BadInput


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


def write(report: Report) -> None:
    """Writes the page of a conversion, if one is asked for.

    Raises:
        BadInput: it can't be written.
    """
    if report.job.request.html is not None:
        from dp2ddp.convert.page import diff_content
        from dp2ddp.page.rendering import render

        content = diff_content.of_report(report)
        made = render(__name__, "convert.html.j2", content, styles=["convert.css"], scripts=["convert.js"])
        page.write(report.job.request.html, made)
