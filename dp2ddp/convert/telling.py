"""Tells what was done: the diff, the summary for people, or a form that machines read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from click import style

from dp2ddp.command import terminal
from dp2ddp.convert import overview, report, summary
from dp2ddp.convert.findings import CHANGE, in_order
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.request import Request
from dp2ddp.project.text_files import TextFile


def show_diffs(changes: Iterable[tuple[TextFile, Conversion]], names: Mapping[str, str] | None = None) -> None:
    """Shows the unified diffs on standard output, in colors on a terminal."""
    for source, conversion in changes:
        name = source.name if names is None else names[source.name]
        text = report.diff(name, source.text, conversion.new_text)
        if not text:
            continue
        if terminal.is_colored(to_error=False):
            terminal.show_results([report.colored(text).removesuffix("\n")])
        else:
            # In the file's own bytes, so that the diff can be applied to it.
            terminal.write_result(_encoded(text, source.encoding))


def _encoded(text: str, encoding: str) -> bytes:
    """The diff as bytes: its first two lines, with the file's name, need not be in the file's encoding."""
    start = text.find("\n@@")
    return text[:start].encode("utf-8") + text[start:].encode(encoding)


def show(done: overview.Scripts | overview.Project, request: Request) -> None:
    """Shows what was done: for people on standard error, in another form on standard output.

    JSON has all that there is to say; the others what needs a person.
    """
    if request.form != "text":
        _show_for_machines(done, request)
    elif isinstance(done, overview.Scripts):
        terminal.show_messages(summary.scripts_lines(done, verbose=request.verbose))
    else:
        terminal.show_messages(summary.project_lines(done, verbose=request.verbose))
    if request.html is not None:
        terminal.show_messages([f"{style(request.html, bold=True)}: all of this as a page, for a browser"])


def _show_for_machines(done: overview.Scripts | overview.Project, request: Request) -> None:
    from dp2ddp.convert import formats  # with what only machines need

    found = in_order(done.found())
    if request.form == "json":
        page = {} if request.html is None else {"html": request.html}
        terminal.show_results([formats.as_json(found, {**done.as_data(), **page})])
    else:
        open_ones = [each for each in found if each.kind != CHANGE]
        terminal.show_results(filter(None, [formats.FORMATS[request.form](open_ones)]))
