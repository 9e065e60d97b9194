"""DDP011: write once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.source import argument
from dp2ddp.edits import Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule

_WRITING = re.compile(r"[rwax]?[bt+]*[wax+][bt+]*")
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
        if path in _OPEN and self._writes(argument(call, 1, "mode")):
            return argument(call, 0, "file")
        if path in ("numpy.save", "numpy.savetxt", "numpy.savez"):
            return argument(call, 0, "file")
        if path == "torch.save" or path.startswith("shutil.copy"):
            return argument(call, 1, "f")
        return None

    def _reading(self, facts: Facts, call: ast.Call, written: set[str]) -> Finding | None:
        """A file that the script reads back: a rank must not read before rank 0 has written."""
        if facts.names.qualified(call.func) not in _OPEN or not call.args or ast.dump(call.args[0]) not in written:
            return None
        return ReplaceExpr(self.id, facts.source.span(call.func), "waits until rank 0 has written the file", "ddp.open")

    def _edit(self, facts: Facts, call: ast.Call) -> Finding | None:
        path = facts.names.qualified(call.func)
        span = facts.source.span(call.func)
        if path in _OPEN and self._writes(argument(call, 1, "mode")):
            return ReplaceExpr(self.id, span, "rank 0 alone writes the file", "ddp.open")
        if path is not None:
            reports = path in _WRITERS or path.startswith(_REPORTING)
            if not reports and not (path in _CALLS and self._is_statement(facts, call)):
                return None
        elif not self._is_writing_method(facts, call):
            return None
        return ReplaceExpr(self.id, span, "once, from rank 0", "ddp.main_only(__h_f__)", {"f": span})

    def _writes(self, mode: ast.expr | None) -> bool:
        """Whether a file is opened for writing, or may be."""
        if mode is None:
            return False
        if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
            return _WRITING.fullmatch(mode.value) is not None
        return True

    def _is_statement(self, facts: Facts, call: ast.Call) -> bool:
        return isinstance(facts.source.parent(call), ast.Expr)

    def _is_writing_method(self, facts: Facts, call: ast.Call) -> bool:
        func = call.func
        return isinstance(func, ast.Attribute) and func.attr in _METHODS and self._is_statement(facts, call)
