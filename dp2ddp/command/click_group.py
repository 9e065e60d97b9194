"""The command group: how commands end, and with which exit code, whatever happens in them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dp2ddp import __version__
from dp2ddp.command import progress, terminal
from dp2ddp.errors import BadInput, EditError, of_system

#: Exit codes. 0: done, or nothing to do. `FOUND`: notes open under --strict, something to convert, or a difference.
FOUND = 1
#: Bad input, or a script that can't be converted: nothing was written.
BAD_INPUT = 2
#: A mistake in dp2ddp.
INTERNAL = 3
#: As shells have it for what Ctrl-C ended.
INTERRUPTED = 130


class Group(click.Group):
    """Commands; a user's mistakes come out as one line, our own as one message, each with its exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BadInput as error:
            terminal.show_error(f"dp2ddp: {error}")
            ctx.exit(BAD_INPUT)
        except BrokenPipeError:  # whoever read the output has left, as `head` does
            raise
        except OSError as error:
            terminal.show_error(f"dp2ddp: {of_system(error)}")
            ctx.exit(BAD_INPUT)
        except KeyboardInterrupt:
            terminal.show_error("dp2ddp: interrupted")
            ctx.exit(INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - told, with a code of its own
            for line in _asking_for_a_report(error):
                terminal.show_error(line)
            ctx.exit(INTERNAL)
        finally:
            progress.end()


def _asking_for_a_report(error: Exception) -> Iterator[str]:
    """What to say of a mistake of our own."""
    import platform

    what = str(error) if isinstance(error, EditError) else f"{type(error).__name__}: {error}".rstrip(": ")
    yield f"dp2ddp: internal error: {what}"
    yield (
        f"  This is a mistake in dp2ddp, not in your script. Please report it, with the script and: "
        f"dp2ddp {__version__}, Python {platform.python_version()}, {platform.system()}"
    )
    if terminal.is_verbose():
        import traceback

        yield "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip("\n")
    else:
        yield "  --verbose shows where it happened."
