"""From a request to a verdict: prepares both sides, has them run and judged, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dp2ddp.errors import BadInput
from dp2ddp.verify.run import side_by_side
from dp2ddp.verify.run.run_options import Request
from dp2ddp.verify.start import cleanup, client

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict

_TORCHVISION = ("torchvision.datasets", "torchvision.transforms")


def _uses_torchvision(script: Path) -> bool:
    return script.is_file() and b"torchvision" in script.read_bytes()


@contextmanager
def verifying(request: Request) -> Iterator[Verdict]:
    """Verify; the runs' folders are there as long as the context is.

    Raises:
        BadInput: a script that can't be read or converted, fewer GPUs than asked for.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(cleanup.folder())
        # It imports torch while the scripts are read and converted here.
        modules = _TORCHVISION if _uses_torchvision(request.script) else ()
        server = stack.enter_context(client.ForkServer(folder, modules))
        both = side_by_side.prepare(request.script, request.converted, allow_ddp=request.allow_ddp)
        from dp2ddp.verify.paired_runs import PairedRuns
        from dp2ddp.verify.verification import verified

        options = replace(request.options, foreign=both.foreign)
        try:
            verdict = verified(PairedRuns(request, folder, server, both), options, both.notes)
        except client.ServerEndedError as ended:
            why = "the process that starts the scripts was killed"
            raise BadInput("verify", what=why, todo="is the machine out of memory?") from ended
        yield verdict
