"""A project, for the tests that look at folders."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
from projects import project  # noqa: E402, F401
