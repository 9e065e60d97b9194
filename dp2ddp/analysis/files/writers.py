"""What writes files and reports: functions by their path, methods by the package that their object comes from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.roles import Class, Function, Instance, Module, Resolver
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument, closure, given_to, keyword

_NATIVE_METHODS = frozenset("to_parquet to_feather to_hdf to_sql save_pretrained".split())
_OF_PATHS = frozenset(
    "write_text write_bytes mkdir mkdir_p makedirs makedirs_p touch unlink rename replace rmdir symlink_to".split()
)
#: The same by their names alone, where nothing is known of the object: nothing else has such methods.
_TELLING = frozenset(
    "savefig to_csv to_pickle to_excel to_parquet to_feather write_text write_bytes mkdir mkdir_p makedirs_p touch "
    "unlink write_html write_videofile save_pretrained".split()
)
_IMAGE = re.compile(r".*\.(png|jpe?g|gif|bmp|tiff?|webp|ppm|pdf|svg)", re.IGNORECASE | re.DOTALL)
_WRITING_MODE = re.compile(r"[wax]|.*\+")


@dataclass(frozen=True)
class Writing:
    """What a call writes.

    Attributes:
        names: the expressions that name the file; all arguments of a command, none for what goes elsewhere.
        command: whether it runs something that may write anything.
        counts: whether what the call returns is used by rank 0 alone; else only a statement can be rank 0's.
        changes: whether it may also be read from what is made.
        native: whether it isn't Python's own functions that touch the disk, or something is shown.
    """

    names: tuple[ast.expr, ...] = ()
    command: bool = False
    counts: bool = False
    changes: bool = False
    native: bool = False


class Writers:
    """Finds what writes files and reports."""

    def __init__(self, names: Names, resolver: Resolver, provenance: Provenance, catalogue: Catalogue) -> None:
        self.names = names
        self.catalogue = catalogue
        self._all_methods = _OF_PATHS.union(_TELLING, *catalogue.methods.values())
        self.resolver = resolver
        self.provenance = provenance
        self._packages: dict[frozenset[ast.expr], set[str]] = {}

    def of(self, call: ast.Call) -> Writing | None:
        """What a call writes, None for one that isn't known to write."""
        path = self.names.qualified(call.func)
        if path is None:
            return self._method(call)
        function = self.catalogue.of(path)
        if path == "sqlite3.connect":
            return Writing(tuple(call.args[:1]), counts=True, changes=self._is_read(call), native=True)
        if path in ("lmdb.open", "lmdb.Environment"):
            return self._environment(call)
        if function is None:
            return None
        native = "native" in function.marks
        if function.does == "writes":
            name = None if function.file is None else argument(call, *function.file)
            return Writing(() if name is None else (name,), counts="result" in function.marks, native=native)
        if function.does in ("runs", "shows"):
            return Writing(tuple(given_to(call)), command=True, native=function.does == "shows")
        if function.does == "reports":
            return Writing(counts=True, native=True)
        return self._opener(call, function.mode, native) if function.does == "opens" else None

    @cached_property
    def of_rank_0(self) -> dict[ast.AST, str]:
        """The calls that only rank 0 makes, and the package of each: of reporters, and of what they make."""
        found: dict[ast.AST, str] = {}
        for call in self.provenance.source.calls:
            path = self.names.qualified(call.func)
            paths = {path} if path else self.packages(call.func.value) if isinstance(call.func, ast.Attribute) else ()
            found.update((call, each.split(".")[0]) for each in paths if self.catalogue.does(each, "reports"))
        return found

    def _opener(self, call: ast.Call, position: int, native: bool) -> Writing | None:
        mode = argument(call, position, "mode")
        if mode is None:
            return None
        given = self.provenance.of(mode) if native else [mode]
        modes = [each.value if isinstance(each, ast.Constant) else None for each in given]
        if not any(_WRITING_MODE.match(each) if isinstance(each, str) else native for each in modes):
            return None
        return Writing(tuple(call.args[:1]), counts=True, native=native)

    def _environment(self, call: ast.Call) -> Writing | None:
        """One of LMDB's that the program writes. Were each rank to write it, they'd wait for each other's end."""
        begun = [c for c in self.method_calls if c.func.attr == "begin" and call in self.makers(c.func.value)]  # type: ignore[attr-defined]
        writing = [c for c in begun if ast.unparse(argument(c, 2, "write") or c) == "True"]
        changes = len(writing) < len(begun)
        return Writing(tuple(call.args[:1]), counts=True, changes=changes, native=True) if writing else None

    def _is_read(self, connection: ast.Call) -> bool:
        """Whether the program fetches rows from a data base."""
        fetching = (c for c in self.method_calls if c.func.attr.startswith("fetch"))  # type: ignore[attr-defined]
        loops = (n.iter for n in self.provenance.source.nodes if isinstance(n, (ast.For, ast.comprehension)))
        read = [*(c.func.value for c in fetching), *loops]  # type: ignore[attr-defined]
        return any(connection in self.makers(node) for node in read)

    @cached_property
    def method_calls(self) -> list[ast.Call]:
        """The calls of methods, and of what modules have."""
        return [c for c in self.provenance.source.calls if isinstance(c.func, ast.Attribute)]

    # -- methods -------------------------------------------------------------------------------------------------------

    def _method(self, call: ast.Call) -> Writing | None:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in self._all_methods:
            return None
        method = func.attr
        if self._is_defined(func) if method in _TELLING else self.may_be_scripts(func):
            return None
        packages = self.packages(func.value)
        if any(package.startswith("pathlib.") for package in packages) and method in _OF_PATHS:
            return Writing((func.value,))
        name = call.args[0] if call.args else keyword(call, "fp") or keyword(call, "fname")
        methods = self.catalogue.methods.items()
        known = [each for start, each in methods if any(package.startswith(start) for package in packages)]
        if any(method in each for each in known) or (method in _TELLING and not known):
            names = (func.value,) if method in _OF_PATHS else (name,) if name is not None else ()
            return Writing(names, native=method in _NATIVE_METHODS)
        is_image = method == "save" and not packages and name is not None and self._is_image(name)
        return Writing((name,)) if is_image and name is not None else None

    def _is_image(self, name: ast.expr) -> bool:
        """Whether a name is that of an image file: what is saved there is an image, wherever it comes from."""
        texts = [n for n in ast.walk(name) if isinstance(n, ast.Constant)]
        return bool(texts) and isinstance(texts[-1].value, str) and _IMAGE.fullmatch(texts[-1].value) is not None

    def may_be_scripts(self, method: ast.Attribute) -> bool:
        """Whether a method is, or may be, one of the script's own classes'."""
        if self._is_defined(method) or self.resolver.holds(method.value, Class, Instance, Module):
            return True
        return isinstance(method.value, ast.Call) and self.names.qualified(method.value.func) == "builtins.super"

    def _is_defined(self, method: ast.Attribute) -> bool:
        """Whether the script defines a method; else an object of its own class has it from a library's."""
        return self.resolver.holds(method, Function)

    def packages(self, node: ast.expr) -> set[str]:
        """The functions of libraries that make the object which an expression is, or is an element of."""
        sources = self.provenance.of(node)
        if sources not in self._packages:
            makers = (self.names.qualified(maker.func) for maker in self.makers(node))
            self._packages[sources] = {path for path in makers if path is not None}
        return self._packages[sources]

    def makers(self, node: ast.expr) -> set[ast.Call]:
        """The calls of libraries' functions from which an object comes: by methods, operators and items, too."""
        values = closure(self.provenance.of(node), self._values_of)
        return {value for value in values if isinstance(value, ast.Call) and self._is_library(value)}

    def _is_library(self, call: ast.Call) -> bool:
        return self.names.qualified(call.func) is not None

    def _values_of(self, node: ast.expr) -> Iterator[ast.expr]:
        """The values that an object comes from which no library's function makes."""
        made = [] if isinstance(node, ast.Call) and self._is_library(node) else self._made_of(node)
        return (value for each in made for value in self.provenance.of(each))

    def _made_of(self, node: ast.expr) -> list[ast.expr]:
        """What an object comes from that no library's function makes."""
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Await)):
            return [node.value, *self.provenance.elements_of(node)]
        if isinstance(node, ast.Call):
            return [node.func]
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, (ast.List, ast.Tuple)):
            return node.elts
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return [node.elt]
        return self.provenance.elements_of(node)
