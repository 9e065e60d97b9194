"""Standard input, output and error, also where whoever started the command has closed them."""

from __future__ import annotations

import os
import sys

from dp2ddp.errors import BadInput


def complete() -> None:
    """Opens those that are closed, so that no other file gets their numbers, and using them is an `OSError`.

    What is said on a closed standard error goes nowhere, as nobody wants to know it.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDWR)):  # the wrong way round for the first two
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    # They live as long as the process.
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def write(data: bytes) -> None:
    """Writes to standard output, at once.

    Raises:
        BadInput: it is closed, or full.
        BrokenPipeError: whoever read it has left, as `head` does.
    """
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What Python holds back goes nowhere, or it would try again when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise BadInput("standard output", what=f"can't be written ({error.strerror})") from None
