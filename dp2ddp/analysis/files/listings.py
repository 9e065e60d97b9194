"""What is asked of the file system: whether a file is there, and which files there are."""

from __future__ import annotations

import ast

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.roles import Class, Function, Instance, Module
from dp2ddp.source.names import Names
from dp2ddp.source.program import ParsedProgram

_QUESTION_METHODS = frozenset({"exists", "is_file", "is_dir"})
_LISTING_METHODS = frozenset({"iterdir", "glob", "rglob"})


class Listings:
    """Recognises questions and listings."""

    def __init__(self, source: ParsedProgram, names: Names, provenance: Provenance, catalogue: Catalogue) -> None:
        self.source = source
        self.catalogue = catalogue
        self.names = names
        self.provenance = provenance
        self.resolver = provenance.resolver

    def is_question(self, call: ast.Call) -> bool:
        """Whether a call asks whether a file is there."""
        path = self.names.qualified(call.func)
        if path is not None:
            return self.catalogue.does(path, "asks")
        return self._is_method(call, _QUESTION_METHODS) and not call.args

    def is_listing(self, call: ast.Call) -> bool:
        """Whether a call lists files."""
        path = self.names.qualified(call.func)
        return self.catalogue.does(path, "lists") if path is not None else self._is_method(call, _LISTING_METHODS)

    def _is_method(self, call: ast.Call, methods: frozenset[str]) -> bool:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in methods:
            return False
        return not self.resolver.holds(func, Function) and not self.resolver.holds(func.value, Class, Instance, Module)
