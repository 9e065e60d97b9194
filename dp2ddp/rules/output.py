"""DDP011: write once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Class, Function, Instance, Module
from dp2ddp.analysis.source import argument
from dp2ddp.edits import Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule

_WRITING = re.compile(r"[rwax]?[bt+]*[wax+][bt+]*")
_MODE = re.compile(r"[rwax][bt+]{0,2}")
_OPEN = frozenset({"builtins.open", "io.open"})
# Writers, and modules whose functions report elsewhere: whatever they return is used by rank 0 alone.
_WRITERS = frozenset({"torch.utils.tensorboard.SummaryWriter", "visdom.Visdom", "tensorboard_logger.Logger"})
_REPORTING = ("wandb.", "mlflow.", "neptune.", "comet_ml.")
_CALLS = frozenset(
    "os.makedirs os.mkdir os.system numpy.save numpy.savez numpy.savez_compressed numpy.savetxt cv2.imwrite "
    "matplotlib.pyplot.savefig matplotlib.pyplot.imsave matplotlib.pyplot.show torchvision.utils.save_image "
    "imageio.imwrite imageio.imsave subprocess.run subprocess.call subprocess.check_call".split()
)
_METHODS = frozenset("savefig to_csv to_pickle to_excel to_parquet write_text write_bytes mkdir touch unlink".split())


class OutputRule(Rule):
    """Files, folders, plots and experiment trackers belong to rank 0. `print`, `tqdm` and `logging` need no change."""

    id = "DDP011"
    title = "Write files, plots and logs from rank 0"
    why = (
        "Every rank runs every line, so each file would be written once per rank, over and into one another. On the "
        "other ranks `ddp.open` and `ddp.main_only` do nothing. `print`, progress bars and `logging` are silenced "
        "there by `ddp.setup`, so these lines stay."
    )
    examples = (
        Example(
            before="""\
import os
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter

net = nn.DataParallel(nn.Linear(4, 2))
os.makedirs("out", exist_ok=True)
writer = SummaryWriter("out")
with open("out/log.csv", "w") as log:
    print("epoch,loss", file=log)
print(open("notes.txt").read())
""",
            after="""\
import os
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
ddp.main_only(os.makedirs)("out", exist_ok=True)
writer = ddp.main_only(SummaryWriter)("out")
with ddp.open("out/log.csv", "w") as log:
    print("epoch,loss", file=log)
print(open("notes.txt").read())
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        if not facts.parallel:
            return
        yield from self._tracker_values(facts)
        written = {ast.dump(p) for c in facts.source.calls if (p := self._written_path(facts, c)) is not None}
        for call in facts.source.calls:
            finding = self._edit(facts, call) or self._reading(facts, call, written)
            if finding is not None:
                yield finding

    def _tracker_values(self, facts: Facts) -> Iterator[Note]:
        """Values that a tracker hands back are there on rank 0 alone."""
        for node in facts.source.nodes:
            path = facts.names.qualified(node) if isinstance(node, ast.Attribute) else None
            if path in ("wandb.config", "wandb.run"):
                assert isinstance(node, ast.Attribute)
                yield Note(
                    self.id,
                    facts.source.span(node),
                    f"`{path}` is read, and only rank 0 has started wandb",
                    "take these values from the script's own arguments",
                )

    def _written_path(self, facts: Facts, call: ast.Call) -> ast.expr | None:
        """The path that a call writes to, where it can be told."""
        path = facts.names.qualified(call.func) or ""
        opened = _opened(facts, call)
        if opened is not None:
            return opened.path if opened.writes else None
        if path in ("numpy.save", "numpy.savetxt", "numpy.savez"):
            return argument(call, 0, "file")
        if path == "torch.save" or path.startswith("shutil.copy"):
            return argument(call, 1, "f")
        return None

    def _reading(self, facts: Facts, call: ast.Call, written: set[str]) -> Finding | None:
        """A file that the script reads back: a rank must not read before rank 0 has written."""
        opened = _opened(facts, call)
        if opened is None or opened.path is None or ast.dump(opened.path) not in written:
            return None
        return opened.by_runtime(facts, self.id, "waits until rank 0 has written the file")

    def _edit(self, facts: Facts, call: ast.Call) -> Finding | None:
        path = facts.names.qualified(call.func)
        opened = _opened(facts, call)
        if opened is not None:
            return opened.by_runtime(facts, self.id, "rank 0 alone writes the file") if opened.writes else None
        if path is not None:
            reports = path in _WRITERS or path.startswith(_REPORTING)
            if not reports and not (path in _CALLS and self._is_statement(facts, call)):
                return None
        elif not self._is_writing_method(facts, call):
            return None
        span = facts.source.span(call.func)
        return ReplaceExpr(self.id, span, "once, from rank 0", "ddp.main_only(__h_f__)", {"f": span})

    def _is_statement(self, facts: Facts, call: ast.Call) -> bool:
        return isinstance(facts.source.parent(call), ast.Expr)

    def _is_writing_method(self, facts: Facts, call: ast.Call) -> bool:
        func = call.func
        return isinstance(func, ast.Attribute) and func.attr in _METHODS and self._is_statement(facts, call)


@dataclass(frozen=True)
class _Opened:
    """A call that opens a file: `open(path, ...)` or, `as_method`, `path.open(...)`."""

    call: ast.Call
    path: ast.expr | None
    writes: bool
    as_method: bool = False

    def by_runtime(self, facts: Facts, rule: str, reason: str) -> Finding:
        """The same by `ddp.open`."""
        span = facts.source.span
        if not self.as_method:
            return ReplaceExpr(rule, span(self.call.func), reason, "ddp.open")
        assert self.path is not None
        holes = {"path": span(self.path)}
        given = []
        for number, value in enumerate([*self.call.args, *(keyword.value for keyword in self.call.keywords)]):
            holes[f"a{number}"] = span(value)
            given.append(f"__h_a{number}__")
        for number, keyword in enumerate(self.call.keywords, start=len(self.call.args)):
            given[number] = f"{keyword.arg}={given[number]}"
        return ReplaceExpr(rule, span(self.call), reason, f"ddp.open({', '.join(['__h_path__', *given])})", holes)


def _opened(facts: Facts, call: ast.Call) -> _Opened | None:
    """What a call opens; None for a call that opens no file, or something else of that name."""
    path = facts.names.qualified(call.func)
    if path in _OPEN:
        return _Opened(call, argument(call, 0, "file"), _writes(argument(call, 1, "mode")))
    if path is not None or not isinstance(call.func, ast.Attribute) or call.func.attr != "open":
        return None
    plain = not any(isinstance(given, ast.Starred) for given in call.args) and all(k.arg for k in call.keywords)
    mode = argument(call, 0, "mode")
    # Archives and file systems have such a method, too, which takes a name first: a mode there tells a path.
    is_mode = mode is None or (isinstance(mode, ast.Constant) and _MODE.fullmatch(str(mode.value)) is not None)
    if not plain or not is_mode or _is_own(facts, call.func):
        return None
    return _Opened(call, call.func.value, mode is not None and _writes(mode), as_method=True)


def _is_own(facts: Facts, method: ast.Attribute) -> bool:
    """Whether a method is, or may be, one of the script's own classes'."""
    known = facts.resolver.holds(method, Function) or facts.resolver.holds(method.value, Class, Instance, Module)
    return known or (
        isinstance(method.value, ast.Call) and facts.names.qualified(method.value.func) == "builtins.super"
    )


def _writes(mode: ast.expr | None) -> bool:
    """Whether a file is opened for writing, or may be."""
    if mode is None:
        return False
    if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
        return _WRITING.fullmatch(mode.value) is not None
    return True
