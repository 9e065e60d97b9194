"""DDP011: write once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.files.opened import Opened
from dp2ddp.rewrite.edits import Finding, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule

#: Where a writer's reports lie.
_FOLDERS = frozenset({"log_dir", "logdir", "get_logdir"})


class OutputRule(Rule):
    """Files, folders, plots and experiment trackers belong to rank 0. `print`, `tqdm` and `logging` need no change."""

    id = "DDP011"
    title = "Write files, plots and logs from rank 0"
    effect = "writes files once"
    why = (
        "Every rank runs every line, so each file would be written once per rank, over and into one another. On the "
        "other ranks `ddp.open` and `ddp.main_only` do nothing. `print`, progress bars and `logging` are silenced "
        "there by `ddp.setup`, so these lines stay. What writes is told by where an object comes from: "
        "`img.save(path)` of an image of PIL is a writer, a model's own method isn't. What a data set writes for one "
        "sample, to read it faster the next time, is written by the rank that loads the sample."
    )
    examples = (
        Example(
            before="""\
import os
import torch.nn as nn
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

net = nn.DataParallel(nn.Linear(4, 2))
os.makedirs("out", exist_ok=True)
Image.open("in.png").convert("L").save("out/grey.png")
writer = SummaryWriter("out")
with open("out/log.csv", "w") as log:
    print("epoch,loss", file=log)
print(open("notes.txt").read())
""",
            after="""\
import os
import torch.nn as nn
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
ddp.main_only(os.makedirs)("out", exist_ok=True)
ddp.main_only(Image.open("in.png").convert("L").save)("out/grey.png")
writer = ddp.main_only(SummaryWriter)("out")
with ddp.open("out/log.csv", "w") as log:
    print("epoch,loss", file=log)
print(open("notes.txt").read())
""",
        ),
    )
    valid = (
        Example("""\
import io
import logging
import torch.nn as nn
from PIL import Image
from tqdm import tqdm

net = nn.DataParallel(nn.Linear(4, 2))
for name in tqdm(open("names.txt").read().split()):
    buffer = io.BytesIO()
    Image.open(name).save(buffer, "JPEG")  # in memory: each rank has its own
    logging.info("%s: %d bytes", name, len(buffer.getvalue()))
"""),
        Example("""\
import torch.nn as nn
from PIL import Image
from torch.utils.data import Dataset

class Faces(Dataset):
    def __getitem__(self, index):
        small = Image.open(f"{index}.png").resize((8, 8))
        small.save(f"small/{index}.png")  # by the rank that loads the sample
        return small

net = nn.DataParallel(nn.Linear(4, 2))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        yield from self._tracker_values(facts)
        yield from self._folders_of_reports(facts)
        for call in facts.source.calls:
            if not facts.in_fetch(call) and call not in facts.alone.in_samples:
                yield from self._opening(facts, call)
                yield from self._writing(facts, call)

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

    def _folders_of_reports(self, facts: Facts) -> Iterator[Finding]:
        """`writer.log_dir`: rank 0 alone has a writer, and checkpoints go into its folder."""
        for node in facts.source.nodes:
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _FOLDERS):
                continue
            if not any(path.endswith(".SummaryWriter") for path in facts.writers.packages(node.value)):
                continue
            above = facts.source.parent(node)
            value = above if isinstance(above, ast.Call) and above.func is node else node
            if facts.on_all_ranks(value):
                span = facts.source.span(value)
                reason = "only rank 0 has a writer, and knows its folder"
                yield ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})

    def _opening(self, facts: Facts, call: ast.Call) -> Iterator[Finding]:
        """A file that is opened. What the script reads back a rank must not read before rank 0 has written it."""
        opened = facts.files.opened(call)
        if opened is None or facts.files.is_own(opened.path):
            return
        if opened.writes:
            yield self._by_runtime(facts, opened, "rank 0 alone writes the file")
        elif opened.path is not None and facts.files.may_be_written(opened.path):
            yield self._by_runtime(facts, opened, "waits until rank 0 has written the file")

    def _writing(self, facts: Facts, call: ast.Call) -> Iterator[Finding]:
        """A call that writes a file, or reports elsewhere."""
        writing = facts.writers.of(call)
        if writing is None or any(map(facts.files.is_own, writing.names)):
            return
        span = facts.source.span(call.func)
        if writing.changes:
            what = "is opened to be read and changed, by every rank at once"
            todo = "open it for reading on all ranks, and for writing by `ddp.main_only(...)`"
            yield Note(self.id, facts.source.span(call), what, todo)
        elif writing.counts or isinstance(facts.source.parent(call), ast.Expr):
            yield ReplaceExpr(self.id, span, "once, from rank 0", "ddp.main_only(__h_f__)", {"f": span})

    def _by_runtime(self, facts: Facts, opened: Opened, reason: str) -> Finding:
        """The same by `ddp.open`."""
        span, call = facts.source.span, opened.call
        if not opened.as_method:
            return ReplaceExpr(self.id, span(call.func), reason, "ddp.open")
        assert opened.path is not None
        holes = {"path": span(opened.path)}
        given = []
        for number, value in enumerate([*call.args, *(keyword.value for keyword in call.keywords)]):
            holes[f"a{number}"] = span(value)
            given.append(f"__h_a{number}__")
        for number, keyword in enumerate(call.keywords, start=len(call.args)):
            given[number] = f"{keyword.arg}={given[number]}"
        return ReplaceExpr(self.id, span(call), reason, f"ddp.open({', '.join(['__h_path__', *given])})", holes)
