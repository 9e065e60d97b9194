"""From a request to a verdict: prepares both sides, has them run and judged, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dp2ddp.errors import BadInput
from dp2ddp.verify.run import side_by_side
from dp2ddp.verify.run.run_options import Options
from dp2ddp.verify.start import cleanup, client

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict

_TORCHVISION = ("torchvision.datasets", "torchvision.transforms")
_BY_DEFAULT = Options()


@contextmanager
def verifying(
    script: Path,
    arguments: Sequence[str] = (),
    converted: Path | None = None,
    options: Options = _BY_DEFAULT,
    *,
    allow_ddp: bool = False,
) -> Iterator[Verdict]:
    """Verify; the runs' folders are there as long as the context is.

    Args:
        script: the original.
        arguments: the script's own.
        converted: the converted script; None: convert the original.
        options: how both run, but for what the verification chooses: precision, reference.
        allow_ddp: convert a script that can also set up DistributedDataParallel itself.

    Raises:
        BadInput: a script that can't be read or converted, fewer GPUs than asked for.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(cleanup.folder())
        # It imports torch while the scripts are read and converted here.
        modules = _TORCHVISION if script.is_file() and b"torchvision" in script.read_bytes() else ()
        server = stack.enter_context(client.ForkServer(folder, modules))
        both = side_by_side.prepare(script, converted, allow_ddp=allow_ddp)
        from dp2ddp.verify.paired_runs import PairedRuns
        from dp2ddp.verify.verification import verified

        pair = PairedRuns(script.resolve(), arguments, folder.resolve(), server, both)
        try:
            verdict = verified(pair, replace(options, foreign=both.foreign), both.notes)
        except client.ServerEndedError as ended:
            why = "the process that starts the scripts was killed"
            raise BadInput("verify", what=why, todo="is the machine out of memory?") from ended
        yield verdict
