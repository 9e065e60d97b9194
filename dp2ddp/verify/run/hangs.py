"""What the converted script's ranks say while they run, when one waits for another for long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TOLD = re.compile(r"^dp2ddp: (?P<what>[^\n]*:\n(?:  rank .*\n)+).*\n?", re.MULTILINE)
_GOES_ON = "The job goes on "
_KEPT = 1 << 14  # characters: more than is told at a time


class Hangs:
    """Reads the ranks' standard error as it is written.

    Args:
        folders: of the ranks' recordings.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._files = {folder / "stderr.txt": 0 for folder in folders}
        self._rest = dict.fromkeys(self._files, "")

    def news(self) -> list[str]:
        """What was told since this was last asked: where each rank is, a line each."""
        found = []
        for path, start in self._files.items():
            with suppress(FileNotFoundError), path.open("rb") as file:  # not yet
                file.seek(start)
                new = file.read()
                self._files[path] += len(new)
                text = self._rest[path] + new.decode(errors="replace")
                told = [match for match in TOLD.finditer(text) if _GOES_ON in match[0]]
                found += [match[0] for match in told]
                self._rest[path] = text[told[-1].end() if told else 0 :][-_KEPT:]
        return found
