"""What messages call the files of a project: as the user would name them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.notebook.notebook import LineMap


@dataclass(frozen=True)
class DisplayPaths:
    """What to call paths relative to `root`.

    Attributes:
        root: the project's folder.
        given: the names of files that the user named himself.
        places: of notebooks, where the lines of their scripts stand.
    """

    root: Path
    given: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, LineMap] = field(default_factory=dict)

    def shown(self, path: str) -> str:
        """What to call the file at `path`; as absolute or as relative as the user called others.

        What lies in the current folder is called from there in any case.
        """
        if path in self.given:
            return _from_here(self.given[path])
        place = self.root / path
        if not place.is_absolute() or all(map(os.path.isabs, self.given.values())):
            return _from_here(str(place))
        return os.path.relpath(place)

    def renamed(self, error: BadInput) -> BadInput:
        """The error about a file at a path, with the name that the user knows it by."""
        shown = self.shown(error.file)
        return self.places[error.file].renamed(error, shown) if error.file in self.places else error.renamed(shown)

    @contextlib.contextmanager
    def in_errors(self) -> Iterator[None]:
        """Renames the file in errors that come out of the block, where it is one of the project's."""
        try:
            yield
        except BadInput as error:
            if os.path.isabs(error.file) or not os.path.lexists(self.root / error.file):
                raise
            raise self.renamed(error) from None


def _from_here(name: str) -> str:
    here = os.path.join(os.getcwd(), "")
    return os.path.relpath(name) if os.path.isabs(name) and name.startswith(here) else name
