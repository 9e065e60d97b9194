"""DDP021: names from before Python and PyTorch renamed them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Done, Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import given_to, in_order, last_name, names_in
from dp2ddp.source.program import FUNCTIONS
from dp2ddp.source.spans import Span

#: torchvision's classes that have another name, with the same arguments.
_RENAMED = {"Scale": "Resize", "RandomSizedCrop": "RandomResizedCrop"}

_NAMES = re.compile("loss|err|acc|prec")  # of what is one number
_RIGHT = re.compile(r"correct\[:\w+\]")  # in what all have copied from PyTorch's example of ImageNet
_VOLATILE = ("`volatile` has no effect since PyTorch 0.4", "`with torch.no_grad():` where it isn't yet")
_FIRST = ("`.data[0]` of a loss raises since PyTorch 0.4", "`.item()`")
_APART = "since PyTorch 1.5 its numbers don't lie as `view` needs them"
_REASON = "what is taken of it by `[0]` was a row before PyTorch 0.4"
_NEXT = ("iterators have no `.next()` since Python 3", "if this is one, write `next(...)`, here and below")
#: Modules that are gone.
_GONE = {
    "torch._six": ("`torch._six` is gone since PyTorch 2.0", "`str`, `int`, `collections.abc`, `math.inf`"),
    "torchvision.models.utils": ("`torchvision.models.utils` is gone", "`torch.hub.load_state_dict_from_url`"),
}
_ITERATOR = ("`_DataLoaderIter` is gone since PyTorch 1.2", "torch's own `DataLoader`, or one from today's parts of it")


class OldNamesRule(Rule):
    """`async=True` becomes `non_blocking=True`; `transforms.Scale`, `transforms.Resize`; `it.next()`, `next(it)`."""

    id = "DDP021"
    title = "Rename what PyTorch has renamed"
    effect = "renames what PyTorch has renamed"
    why = (
        "`async=True` is no Python since 3.7: it becomes `non_blocking=True`. torchvision's `Scale` and "
        "`RandomSizedCrop` get their new names, `it.next()` of what `iter` made becomes `next(it)`, `loss.data[0]` of "
        "a loss or an accuracy `loss.item()`, `correct[:k].view(-1)` a `reshape`. What today's PyTorch can't run "
        "(`loss.data[0]` of several, `_DataLoaderIter`) or ignores (`volatile=True`) gets a note."
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
        for node in (n for n in facts.source.nodes if isinstance(n, ast.Attribute)):
            library, _, name = (facts.qualified(node) or "").rpartition(".")
            if library.startswith("torchvision.transforms") and name in _RENAMED:
                span = facts.source.span(node)
                new = f"__h_value__.{_RENAMED[name]}"
                yield ReplaceExpr(self.id, span, f"`{name}` is gone", new, {"value": facts.source.span(node.value)})
            elif node.attr == "view" and _RIGHT.fullmatch(ast.unparse(node.value)):
                parts = {"it": facts.source.span(node.value)}
                yield ReplaceExpr(self.id, facts.span(node), _APART, "__h_it__.reshape", parts)
                yield from self._sums(facts, node)
        firsts = {node: loss for node in facts.source.nodes if (loss := _first_of(node)) is not None}
        losses = {node: loss for node, loss in firsts.items() if _is_loss(facts, loss)}
        for first, loss in losses.items():
            span = facts.source.span(first)
            yield ReplaceExpr(self.id, span, "a loss has no `[0]`", "__h_it__.item()", {"it": facts.source.span(loss)})
        yield from self._nexts(facts)
        kinds = (ast.keyword, ast.Subscript, ast.ImportFrom)
        for old in in_order(n for n in facts.source.nodes if isinstance(n, kinds)):
            found = None if old in losses else _outdated(facts, old)
            if found is not None:
                yield Note(self.id, facts.source.span(old), found[0], f"use {found[1]}, here and below")

    def _sums(self, facts: Facts, node: ast.expr) -> Iterator[Finding]:
        """`correct[:k].view(-1).float().sum(0)`, if `prec1[0]` is taken of it: it was a row, and is a number by now."""
        sums = [n for n in facts.source.ancestors(node) if isinstance(n, ast.Call) and last_name(n.func) == "sum"]
        function = facts.source.function(node)
        uses = map(facts.source.statement, facts.classes.uses(function) if sums and function else ())
        targets = [part for each in uses if isinstance(each, ast.Assign) for part in each.targets]
        pairs = [each for each in targets if isinstance(each, ast.Tuple)]
        names = {(facts.source.scope(each), f"{name}[0]") for each in pairs for name in names_in(each)}
        taken = (n for n in facts.source.nodes if names and isinstance(n, ast.Subscript))
        if any((facts.source.scope(each), ast.unparse(each)) in names for each in taken):
            for each in (n for n in sums if [*map(ast.unparse, given_to(n))] == ["0"]):
                parts = {"sum": facts.span(each.func)}
                yield ReplaceExpr(self.id, facts.span(each), _REASON, "__h_sum__(0, keepdim=True)", parts)

    def _nexts(self, facts: Facts) -> Iterator[Finding]:
        has_next = any(isinstance(n, FUNCTIONS) and n.name == "next" for n in facts.source.nodes)
        for call in (each for each in facts.source.calls if not given_to(each)):
            it = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "next" else None
            if it is None or not _is_iterator(facts, it):
                if it is not None and not has_next and not isinstance(facts.source.parent(call), ast.Expr):
                    yield Note(self.id, facts.source.span(call), *_NEXT)
            else:
                parts = {"it": facts.source.span(it)}
                is_own = facts.names.follow(facts.source.module(call), "next") is not None
                new = "__h_it__.__next__()" if is_own else "next(__h_it__)"
                yield ReplaceExpr(self.id, facts.source.span(call), "`.next()` is gone", new, parts)


def _outdated(facts: Facts, node: ast.AST) -> tuple[str, str] | None:
    """What PyTorch doesn't have any more, under no other name, and what is used instead."""
    if isinstance(node, ast.keyword):
        return _VOLATILE if node.arg == "volatile" else None
    if isinstance(node, ast.Subscript):
        first = _first_of(node)
        return _FIRST if first is not None and _NAMES.search(ast.unparse(first).lower()) else None
    names = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
    if isinstance(facts.source.parent(node), (ast.Try, ast.If)):  # it is chosen where it is there
        return None
    return _GONE.get(getattr(node, "module", None) or "", _ITERATOR if "_DataLoaderIter" in names else None)


def _is_iterator(facts: Facts, node: ast.expr) -> bool:
    """Whether a value is what `iter` gives, for sure: a class may have a `next` of its own."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return isinstance(node, ast.Call) and facts.qualified(node.func) == "builtins.iter"
    same = (n for n in ast.walk(facts.source.module(node)) if type(n) is type(node) and last_name(n) == last_name(node))
    found = [each for each in same if isinstance(getattr(each, "ctx", None), ast.Store)]
    statements = map(facts.source.statement, found)
    made = [each.value if isinstance(each, ast.Assign) else None for each in statements]
    calls = [facts.qualified(each.func) for each in made if isinstance(each, ast.Call)]
    return bool(found) and len(calls) == len(found) and set(calls) == {"builtins.iter"}


def _first_of(node: ast.AST) -> ast.expr | None:
    """The `x` of `x.data[0]`."""
    is_first = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0
    data = node.value if is_first and isinstance(node, ast.Subscript) else None
    return data.value if isinstance(data, ast.Attribute) and data.attr == "data" else None


def _is_loss(facts: Facts, node: ast.expr) -> bool:
    """Whether a value is one number: a mean, by its name, or as in its function its `backward` is called."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("mean", "sum", "norm") and not given_to(node):
        return True
    name, inside = ast.unparse(node), list(ast.walk(facts.source.function(node) or facts.source.module(node)))
    assigns = [n for n in inside if isinstance(n, ast.Assign) and any(ast.unparse(each) == name for each in n.targets)]
    if any(ast.unparse(part) == name for each in assigns for part in ast.walk(each.value)):
        return False  # `loss = loss.mean()`: there were several
    calls = (n.func for n in inside if isinstance(n, ast.Call) and not n.args and isinstance(n.func, ast.Attribute))
    begins = any(each.attr == "backward" and ast.unparse(each.value) == name for each in calls)
    return begins or bool(_NAMES.search(name.lower()))
