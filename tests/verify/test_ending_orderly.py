"""Signals that end `dp2ddp verify` do so, whatever it is at."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from dp2ddp.verify.run import runs
from dp2ddp.verify.start.signals import ending_orderly, heed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends the process there")


def test_a_signal_that_somebody_catches_is_heeded_later() -> None:
    """As where parts of torch are imported: what they can't import they do without."""
    with pytest.raises(SystemExit) as ended, ending_orderly():  # noqa: PT012
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:  # noqa: BLE001
            runs.together({})
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    heed()  # nothing any more
