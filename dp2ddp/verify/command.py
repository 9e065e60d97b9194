"""From a request to a verdict: prepares both sides, has them run and judged, and leaves nothing behind."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from dp2ddp.errors import BadInput
from dp2ddp.verify.progress import Show, silent
from dp2ddp.verify.request import Request
from dp2ddp.verify.run import sides
from dp2ddp.verify.start import keeping, temporary

if TYPE_CHECKING:
    from dp2ddp.verify.verdict import Verdict


@contextmanager
def verifying(request: Request, show: Show = silent) -> Iterator[Verdict]:
    """Verify; the runs' folders are there as long as the context is.

    Args:
        show: is told how far it is.

    Raises:
        BadInput: a script that can't be read or converted, fewer GPUs than asked for, a full disk.
    """
    with ExitStack() as stack:
        folder = request.folder or stack.enter_context(temporary.folder())
        # It imports torch while the scripts are read and converted here.
        keeper = stack.enter_context(keeping.opened(None if request.folder else folder))
        both = sides.prepare(request.script, request.converted, allow_ddp=request.allow_ddp)
        keeper.share(both.shared)
        from dp2ddp.verify.verification import Verification

        try:
            verdict = Verification(request, folder, keeper, both, show).verdict()
        except keeping.KeeperEndedError as ended:
            why = "the process that starts the scripts was killed"
            raise BadInput("verify", what=why, todo="is the machine out of memory?") from ended
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise temporary.full(folder) from error
            raise
        yield verdict
