"""DDP011: write once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

from dp2ddp.analysis.catalogue import MAIN_ONLY
from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, InsertAfter, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import argument, given_to, keyword, last_name, names_in
from dp2ddp.source.program import FUNCTIONS

_REASON = "rank 0 alone does this"
#: What is there behind `wandb.init()`.
_VALUES = ("wandb.config.",)
_SAVES = re.compile("save|write|dump")
_WRITES = (".update", ".setdefault")


class OutputRule(Rule):
    """Trackers, windows and what writes files from C++ belong to rank 0. What writes by Python needs no change."""

    id = "DDP011"
    title = "Show and track from rank 0"
    effect = "writes files once"
    why = (
        "After `ddp.setup` rank 0 alone prints, logs, and changes files by Python, whatever library does it: these "
        "lines stay. What goes to a server or a window, or is written from C++ (`cv2.imwrite`), the runtime can't "
        "see: on the other ranks `ddp.main_only` does nothing. [The table](../dp2ddp/analysis/catalogue.toml) has one "
        "line for each function."
    )
    examples = (
        Example(
            diff="""\
 import cv2
 import os
 import numpy as np
 import torch.nn as nn
 import wandb
+import dp2ddp_runtime as ddp
+wandb = ddp.main_only(wandb)

 net = nn.DataParallel(nn.Linear(4, 2))
 os.makedirs("out", exist_ok=True)
-cv2.imwrite("out/grey.png", np.zeros((4, 4)))
+ddp.main_only(cv2.imwrite)("out/grey.png", np.zeros((4, 4)))
 wandb.init(project="grey")
"""
        ),
    )
    valid = (
        Example("""\
import json
import logging
import os
import torch.nn as nn
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

writer = SummaryWriter("runs")  # it writes by Python's own functions
net = nn.DataParallel(nn.Linear(4, 2))
os.makedirs("small", exist_ok=True)
for name in tqdm(open("names.txt").read().split()):
    Image.open(name).resize((8, 8)).save(f"small/{name}")
    logging.info("%s", name)
with open("log.json", "w") as log:
    json.dump({"epoch": 1}, log)
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        trackers = list(dict.fromkeys(_trackers(facts)))
        for statement, name in trackers:
            line = f"{name} = ddp.main_only({name})"
            yield InsertAfter(self.id, facts.span(statement), f"{name} is rank 0's", [line])
        known = {(facts.source.module(statement), name) for statement, name in trackers}
        for call in facts.source.calls:
            path = facts.qualified(call.func)
            if facts.catalogue.does(path, "stores") and getattr(keyword(call, "readonly"), "value", None) is not True:
                what = "this store is opened by every rank, and what is written into it is written by each"
                todo = "write it by `ddp.main_only(...)`, or under `ddp.is_main()`"
                yield Note(self.id, facts.span(call), what, todo)
            if facts.catalogue.does(path, "reads") and _was_written(facts, call):
                what = (
                    "rank 0 alone writes this file, and a library reads it past Python: other ranks may come too early"
                )
                yield Note(self.id, facts.span(call), what, "put `ddp.barrier()` above this line")
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in facts.catalogue.methods
            is_own = is_method and _may_be_own(facts, call)
            if is_own:
                what = f"the program has a `{last_name(call.func)}` of its own, and a library has one that writes files"
                yield Note(self.id, facts.span(call), what, "where this is the library's, write `ddp.main_only(...)`")
            is_one = facts.catalogue.does(path, *MAIN_ONLY) or (is_method and not is_own)
            if (is_one or _opens_to_write(facts, call)) and not _is_of(facts, call.func, known):
                span = facts.span(call.func)
                yield ReplaceExpr(self.id, span, _REASON, "ddp.main_only(__h_f__)", {"f": span})
        for node in facts.source.nodes:
            if facts.catalogue.does(facts.qualified(node), "writes", "shows") and facts.is_handed_on(node):
                span = facts.span(node)  # handed on: `pool.map(cv2.imwrite, ...)`
                yield ReplaceExpr(self.id, span, _REASON, "ddp.main_only(__h_f__)", {"f": span})
        for node in (n for n in facts.source.nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)):
            path = facts.qualified(node) or ""
            if path.startswith(_VALUES) and not path.endswith(_WRITES):
                what = "`wandb.config` is read, and only rank 0 has started wandb"
                yield Note(self.id, facts.span(node), what, "take such values from the script's own arguments")


def _was_written(facts: Facts, call: ast.Call) -> bool:
    """Whether the function around a call gives what it is given to something that saves or writes, above it."""
    given, inside = {*map(ast.unparse, call.args[:1])}, ast.walk(facts.source.function(call) or call)
    above = (
        n for n in inside if isinstance(n, ast.Call) and n.lineno < call.lineno and _SAVES.search(last_name(n.func))
    )
    return any(not given.isdisjoint(map(ast.unparse, given_to(each))) for each in above)


def _may_be_own(facts: Facts, call: ast.Call) -> bool:
    """Whether the program has a method of that name: which one it is depends on the object, but for `super()`."""
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_super = isinstance(inner, ast.Call) and facts.qualified(inner.func) == "builtins.super"
    named = (n for n in facts.source.nodes if isinstance(n, FUNCTIONS) and n.name == last_name(call.func))
    return not is_super and any(isinstance(facts.source.parent(each), ast.ClassDef) for each in named)


def _opens_to_write(facts: Facts, call: ast.Call) -> bool:
    """Whether a file may be opened to write: `h5py.File(path, "w")`, `h5py.File(path, mode)`; it is read else. So is
    what may have been written so in the same file of the program: a read waits for that.
    """
    path, module = facts.qualified(call.func), facts.source.module(call)
    if not facts.catalogue.does(path, "opens"):
        return False
    modes = [argument(each, 1, "mode") for each in facts.calls([path or ""]) if facts.source.module(each) is module]
    return any(mode is not None and getattr(mode, "value", None) not in ("r", "rb") for mode in modes)


def _is_of(facts: Facts, node: ast.expr, known: set[tuple[ast.Module, str]]) -> bool:
    """Whether what is called belongs to a module that is rank 0's as a whole."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and (facts.source.module(node), node.id) in known


def _trackers(facts: Facts) -> Iterator[tuple[ast.stmt, str]]:
    """The names of modules that report elsewhere, each with the last of the imports that it stands among.

    Where a file asks for types of such a module, or derives from one, its calls are rank 0's one by one: what
    `ddp.main_only` makes of it is no class.
    """
    asked = set(_asked_for_types(facts))
    for node in (each for each in facts.source.nodes if isinstance(each, ast.Import)):
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]  # `import mlflow.pytorch` binds `mlflow`
            library = alias.name if alias.asname else name
            if facts.catalogue.does(f"{library}.*", "reports") and (facts.source.module(node), name) not in asked:
                yield _last_import(facts.source.block(node), node), name


def _asked_for_types(facts: Facts) -> Iterator[tuple[ast.Module, str]]:
    """The names that stand where types do, by the file."""
    for node in facts.source.nodes:
        types: list[ast.expr] = node.bases if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.Call) and facts.qualified(node.func) in ("builtins.isinstance", "builtins.issubclass"):
            types = node.args[1:]
        yield from ((facts.source.module(node), name) for each in types for name in names_in(each))


def _last_import(block: list[ast.stmt], first: ast.stmt) -> ast.stmt:
    """The last of the imports that follow one without a line between them."""
    behind = block[block.index(first) :]
    run = takewhile(lambda each: isinstance(each, (ast.Import, ast.ImportFrom)), behind)
    return list(run)[-1]
