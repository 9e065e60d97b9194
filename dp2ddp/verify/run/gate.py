"""How far a run may go: it waits where it is too far ahead of the comparison, so that little has to be kept on disk."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

_LOOK_EVERY = 0.005  # seconds


class Gate:
    """The number of optimizer steps that a run may make, in a file: one process opens it further, others wait at it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.limit = 0.0
        self.last = False

    def open(self, limit: float, last: bool = False) -> None:
        """Let runs make `limit` steps; `last`: and end there."""
        self.limit, self.last = limit, last
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([None if limit == math.inf else limit, last]))
        os.replace(new, self.path)

    def ends_after(self, steps: int) -> bool:
        """Wait until a run that has made `steps` steps may make another one (False), or is to end (True)."""
        while steps >= self.limit and not self.last:
            limit, self.last = json.loads(self.path.read_text())
            self.limit = math.inf if limit is None else limit
            if steps >= self.limit and not self.last:
                time.sleep(_LOOK_EVERY)
        return steps >= self.limit
