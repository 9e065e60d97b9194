"""DDP021: names from before Python and PyTorch renamed them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Done, Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import given_to, in_order, last_name
from dp2ddp.source.spans import Span

#: torchvision's classes that have another name, with the same arguments.
_RENAMED = {"Scale": "Resize", "RandomSizedCrop": "RandomResizedCrop"}

_VOLATILE = ("`volatile` has no effect since PyTorch 0.4", "`with torch.no_grad():` where it isn't yet")
_FIRST = ("`.data[0]` of a loss raises since PyTorch 0.4", "`.item()`")
_ITERATOR = ("`_DataLoaderIter` is gone since PyTorch 1.2", "torch's own `DataLoader`, or one from today's parts of it")


class OldNamesRule(Rule):
    """`async=True` becomes `non_blocking=True`; `transforms.Scale`, `transforms.Resize`; `it.next()`, `next(it)`."""

    id = "DDP021"
    title = "Rename what PyTorch has renamed"
    effect = "renames what PyTorch has renamed"
    why = (
        "`async` is a keyword since Python 3.7, and PyTorch calls the argument `non_blocking` since 0.4. A script "
        "that says `async=True` is no Python any more, so it is renamed before anything else is read. So are "
        "torchvision's `Scale` and `RandomSizedCrop`, which have the same arguments by new names, and `it.next()` "
        "of what `iter` made, which is `next(it)` since Python 3. `loss.data[0]` and `_DataLoaderIter`, which today's "
        "PyTorch can't run, and `volatile=True`, which it ignores, get a note."
    )
    essential = True
    examples = (
        Example(
            also=("DDP002",),
            diff="""\
 import torch
 import torch.nn as nn
+import dp2ddp_runtime as ddp

-net = nn.DataParallel(nn.Linear(4, 2))
-x = torch.ones(3, 4).cuda(async=True)
+net = ddp.wrap_model(nn.Linear(4, 2))
+x = torch.ones(3, 4).cuda(non_blocking=True)
""",
        ),
        Example(
            also=("DDP002",),
            diff="""\
 import torch.nn as nn
 from torchvision import transforms
+import dp2ddp_runtime as ddp

-resize = transforms.Scale(256)
-names = iter(["a", "b"]).next()
+resize = transforms.Resize(256)
+names = next(iter(["a", "b"]))
 its = iter(names)
-letter = its.next()
-net = nn.DataParallel(nn.Linear(4, 2))
+letter = next(its)
+net = ddp.wrap_model(nn.Linear(4, 2))
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

async def fetch(url):  # Python's own `async`
    return url

net = nn.DataParallel(nn.Linear(4, 2))
x = torch.ones(3, 4).cuda(non_blocking=True)
print("was .cuda(async=True)")

class Prefetcher:
    def next(self):  # the script's own
        return x

print(Prefetcher().next())
both = [iter([x])]
both.append(Prefetcher())
print(both[1].next())
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for file in facts.source.files:
            for line, column in file.renamed:
                span = Span.of(file.before + line, column, file.before + line, column + len("non_blocking"))
                yield Done(self.id, span, "`async` is a keyword of Python now")
        for node in facts.source.nodes:
            path = facts.names.qualified(node) if isinstance(node, ast.Attribute) else None
            library, _, name = (path or "").rpartition(".")
            if library.startswith("torchvision.transforms") and name in _RENAMED and isinstance(node, ast.Attribute):
                span = facts.source.span(node)
                new = f"__h_value__.{_RENAMED[name]}"
                yield ReplaceExpr(self.id, span, f"`{name}` is gone", new, {"value": facts.source.span(node.value)})
        for call in facts.source.calls:
            it = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "next" else None
            if it is not None and not given_to(call) and _is_iterator(facts, it):
                parts = {"it": facts.source.span(it)}
                is_own = facts.names.follow(facts.source.module(call), "next") is not None
                new = "__h_it__.__next__()" if is_own else "next(__h_it__)"
                yield ReplaceExpr(self.id, facts.source.span(call), "`.next()` is gone", new, parts)
        kinds = (ast.keyword, ast.Subscript, ast.ImportFrom)
        for node in in_order(n for n in facts.source.nodes if isinstance(n, kinds)):
            found = _outdated(facts, node)
            if found is not None:
                yield Note(self.id, facts.source.span(node), found[0], f"use {found[1]}, here and below")


def _outdated(facts: Facts, node: ast.AST) -> tuple[str, str] | None:
    """What PyTorch doesn't have any more, under no other name, and what is used instead."""
    if isinstance(node, ast.keyword):
        return _VOLATILE if node.arg == "volatile" else None
    if isinstance(node, ast.Subscript):
        return _FIRST if _is_loss_s(node) else None
    names = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
    is_chosen = isinstance(facts.source.parent(node), (ast.Try, ast.If))
    return _ITERATOR if "_DataLoaderIter" in names and not is_chosen else None


def _is_iterator(facts: Facts, node: ast.expr) -> bool:
    """Whether a value is what `iter` gives, for sure: a class may have a `next` of its own."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return isinstance(node, ast.Call) and facts.qualified(node.func) == "builtins.iter"
    stores = (each for each in facts.source.stores.get(last_name(node), ()) if type(each) is type(node))
    found = [each for each in stores if facts.source.module(each) is facts.source.module(node)]
    statements = map(facts.source.statement, found)
    made = [each.value if isinstance(each, ast.Assign) else None for each in statements]
    calls = [facts.qualified(each.func) for each in made if isinstance(each, ast.Call)]
    return bool(found) and len(calls) == len(found) and set(calls) == {"builtins.iter"}


def _is_loss_s(node: ast.Subscript) -> bool:
    """Whether it is `loss.data[0]`, by the name."""
    is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
    data = node.value
    return is_first and isinstance(data, ast.Attribute) and data.attr == "data" and "loss" in ast.unparse(data).lower()
