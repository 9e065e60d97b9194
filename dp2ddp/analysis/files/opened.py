"""The files that a program opens, writes and changes: which rank 0 writes, and which are a rank's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.files.file_names import FileNames
from dp2ddp.analysis.files.writers import Writers
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument
from dp2ddp.source.program import ParsedProgram

_OPEN = frozenset({"builtins.open", "io.open"})
_WRITING = re.compile(r"[rwax]?[bt+]*[wax+][bt+]*")
_MODE = re.compile(r"[rwax][bt+]{0,2}")


@dataclass(frozen=True)
class Opened:
    """A call that opens a file, and maybe writes it: `open(path, ...)` or `path.open(...)`."""

    call: ast.Call
    path: ast.expr | None
    writes: bool


class Files:
    """Knows a program's files by their names."""

    def __init__(self, source: ParsedProgram, names: Names, provenance: Provenance, writers: Writers) -> None:
        self.source = source
        self.names = names
        self.writers = writers
        self._paths = FileNames(names, provenance, writers.catalogue)

    def opened(self, call: ast.Call) -> Opened | None:
        """What a call opens; None for a call that opens no file, or something else of that name."""
        path = self.names.qualified(call.func)
        if path in _OPEN:
            return Opened(call, argument(call, 0, "file"), _writes(argument(call, 1, "mode")))
        if path is not None or not isinstance(call.func, ast.Attribute) or call.func.attr != "open":
            return None
        plain = not any(isinstance(given, ast.Starred) for given in call.args) and all(k.arg for k in call.keywords)
        mode = argument(call, 0, "mode")
        # Archives and file systems have such a method, too, which takes a name first: a mode there tells a path.
        is_mode = mode is None or (isinstance(mode, ast.Constant) and _MODE.fullmatch(str(mode.value)) is not None)
        if not plain or not is_mode or self.writers.may_be_scripts(call.func):
            return None
        return Opened(call, call.func.value, mode is not None and _writes(mode))

    def is_own(self, path: ast.expr | None) -> bool:
        """Whether a file or folder is each rank's own: a temporary one, in a temporary folder, or in memory."""
        if path is None:
            return False
        if self._makes_buffers and self._paths.in_memory(path):
            return True
        if not self._makes_temporary:
            return False
        makers, only = self._paths.temporary(path)
        return only and not makers & self.shared

    @cached_property
    def shared(self) -> frozenset[ast.Call]:
        """The calls that make temporary files and folders which have to be one for all ranks: the same line of the
        script writes other files as well, and these are rank 0's."""
        if not self._makes_temporary:
            return frozenset()
        found = [self._paths.temporary(path) for call in self.source.calls for path in self._written_by(call)]
        return frozenset().union(*(makers for makers, only in found if not only))

    @cached_property
    def _makes_temporary(self) -> bool:
        return self.source.mentions("tempfile")

    @cached_property
    def _makes_buffers(self) -> bool:
        return self.source.mentions("BytesIO") or self.source.mentions("StringIO")

    def _written_by(self, call: ast.Call) -> Iterator[ast.expr]:
        """The names of the files that a call writes or changes."""
        opened = self.opened(call)
        function = self.writers.catalogue.of(self.names.qualified(call.func))
        given: ast.expr | None = None
        if opened is not None:
            given = opened.path if opened.writes else None
        elif function is not None and function.does in ("saves", "changes"):
            given = argument(call, *function.file) if function.file is not None else None
        else:
            writing = self.writers.of(call)
            yield from writing.names if writing is not None and not writing.command else ()
        if given is not None:
            yield given


def _writes(mode: ast.expr | None) -> bool:
    """Whether a file is opened for writing, or may be."""
    if mode is None:
        return False
    if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
        return _WRITING.fullmatch(mode.value) is not None
    return True
