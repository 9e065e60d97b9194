"""From a request to a verdict: prepares both sides, has them run and judged, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dp2ddp.errors import BadInput
from dp2ddp.verify.run import side_by_side
from dp2ddp.verify.run.run_options import Request
from dp2ddp.verify.start import cleanup, client

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict


@contextmanager
def verifying(request: Request) -> Iterator[Verdict]:
    """Verify; the runs' folders are there as long as the context is.

    Raises:
        BadInput: a script that can't be read or converted, fewer GPUs than asked for.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(cleanup.folder())
        # It imports torch while the scripts are read and converted here.
        server = stack.enter_context(client.ForkServer(folder))
        both = side_by_side.prepare(request.script, request.converted, allow_ddp=request.allow_ddp)
        server.share(both.shared)
        from dp2ddp.verify.paired_runs import PairedRuns
        from dp2ddp.verify.verification import Verification, check_devices

        check_devices(request.options)

        options = replace(request.options, foreign=both.foreign or request.options.foreign)
        pair = PairedRuns(request, folder, server, both)
        try:
            verdict = Verification(pair, options, both.notes).verdict()
        except client.ServerEndedError as ended:
            why = "the process that starts the scripts was killed"
            raise BadInput("verify", what=why, todo="is the machine out of memory?") from ended
        yield verdict
