"""DDP001: start the processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from dp2ddp.analysis.control.conditions import terms
from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.given_devices import Given, untold_condition
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.launch.settled import ARGUMENTS, DEVICES
from dp2ddp.analysis.roles import Module, defaults
from dp2ddp.rewrite.edits import AddImport, Finding, InsertAfter, InsertBefore, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import is_main_guard, keyword

#: Why `ddp.setup()` is there, below the script's own choice of GPUs.
NARROWED = "starts one process on each GPU that the script makes visible"
# What should come before the processes start, and doesn't: what follows from it, and what to do.
_LATE = {
    ARGUMENTS: (
        "the arguments are parsed after the processes have started, so that `--help` starts all of them, too",
        "parse them above `ddp.setup()`, or move what has to come first below it",
    ),
    DEVICES: (
        "CUDA_VISIBLE_DEVICES is set after the processes have started: as many go on as it names, on the first GPUs",
        "set it above `ddp.setup()`, or in the shell that starts the script, where it has to be these very GPUs",
    ),
}
_IDLE = "where no model is wrapped, one process goes on"
_LOGS = ("logging.FileHandler", "logging.handlers.")
# What writes before they start: the same.
_EARLY = (
    "every process that torchrun starts writes this file by itself, before `ddp.setup()`, which has to know the "
    "arguments; one may read what another is writing",
    "start the script by `python` once, which writes it before there are others",
)
_FOR_OTHERS = (
    "every script that comes here starts processes, also one that wraps nothing and isn't converted",
    "show such a script one GPU: CUDA_VISIBLE_DEVICES=0",
)
_EARLY_BESIDE = (
    "every process writes here by itself, before `ddp.setup()`, which stands where it can be told whether the script "
    "sets up DDP itself; one may read what another is writing",
    "move it below `ddp.setup()`, or decide on DDP above it",
)


class LaunchRule(Rule):
    """`ddp.setup(...)` after the arguments are parsed, before anything else has an effect."""

    id = "DDP001"
    title = "Start one process per GPU"
    effect = "starts one process per device"
    why = (
        "DistributedDataParallel runs one process per GPU. `ddp.setup()` joins the process group or, when the "
        "script is run plainly, starts the other processes. It stands after `parse_args()`, so that `--help` "
        "starts nothing, and after any line that sets CUDA_VISIBLE_DEVICES, so that only those GPUs are used. "
        "Otherwise it stands before anything that prints, seeds, builds or reads, so that all ranks do these "
        "things alike. A script that can also set up DDP itself is refused; with `--allow-ddp` the processes "
        "start only where it doesn't, and its own DDP stays as it is."
    )
    essential = True
    examples = (
        Example(
            before="""\
import argparse
import os

import torch.nn as nn

parser = argparse.ArgumentParser()
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"

print("training")
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
""",
            after="""\
import argparse
import os

import torch.nn as nn
import dp2ddp_runtime as ddp

parser = argparse.ArgumentParser()
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"

ddp.setup(device_ids=[0, 1])
print("training")
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
""",
        ),
        Example(
            before="""\
import argparse
import os
import torch
from torch import nn


def main():
    args = parse()
    print(args)
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu
    net = nn.DataParallel(nn.Linear(4, 2))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="0,1")
    return parser.parse_args()


torch.manual_seed(0)
if __name__ == "__main__":
    main()
""",
            after="""\
import argparse
import os
import torch
from torch import nn
import dp2ddp_runtime as ddp


def main():
    args = parse()
    print(args)
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu
    ddp.setup()
    net = nn.DataParallel(nn.Linear(4, 2))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="0,1")
    return parser.parse_args()


torch.manual_seed(0)
if __name__ == "__main__":
    main()
""",
        ),
        Example(
            allow_ddp=True,
            also=("DDP002",),
            before="""\
import argparse
import torch.distributed as dist
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()

net = nn.Linear(4, 2)
if args.distributed:
    dist.init_process_group("nccl")
    net = nn.parallel.DistributedDataParallel(net.cuda())
else:
    net = nn.DataParallel(net).cuda()
""",
            after="""\
import argparse
import torch.distributed as dist
import torch.nn as nn
import dp2ddp_runtime as ddp

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()

if not args.distributed:
    ddp.setup(beside_ddp=True)
net = nn.Linear(4, 2)
if args.distributed:
    dist.init_process_group("nccl")
    net = nn.parallel.DistributedDataParallel(net.cuda())
else:
    net = ddp.wrap_model(net).cuda()
""",
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn
import torch.optim as optim

net = nn.Linear(4, 2)  # no model is wrapped: one process, as before
optimizer = nn.DataParallel(optim.SGD(net.parameters(), lr=0.1))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        told: list[Finding] = []  # several scripts may come to the same place
        for launch in facts.launches:
            told += [found for found in self._start(facts, launch) if found not in told]
        yield from told

    def _start(self, facts: Facts, launch: Launch) -> Iterator[Finding]:
        modules = facts.names.reachable(launch.entry)
        wraps = [w for w in facts.wraps.models if facts.source.module(w.call) in modules]
        calls = [c for c in facts.wraps.functional if facts.source.module(c) in modules]
        if launch.statement is None:
            yield Note(
                self.id,
                facts.source.span([*(w.call for w in wraps), *calls, *launch.entry.body][0]),
                "nothing in this file runs when it is started, so there is no place here for `ddp.setup()`",
                "call `ddp.setup()` in the script that is started, before it builds anything",
            )
            return
        above = launch.entry.body
        if launch.statement in above:
            above = above[: above.index(launch.statement)]
        for statement in facts.launch_finder.effects.before_which_to_import(above):
            yield AddImport(
                self.id, facts.source.span(statement), "a rank shows nothing, and sees one GPU, from here on"
            )
        for call in _built_early(facts, above):
            yield Note(
                self.id,
                facts.source.span(call),
                "this is built while a module is imported, before the processes start: each draws weights of its own, "
                "and only a model that is wrapped gets rank 0's",
                "build it in a function that is called below `ddp.setup()`",
            )
        for call in _logs_begun_early(facts, above):
            what = "this log is begun while a module is imported, before the processes start: by each of them"
            yield Note(
                self.id, facts.source.span(call), what, "begin it in a function that is called below `ddp.setup()`"
            )
        given = facts.given[id(launch)]
        here = [each for each in facts.launches if each is not launch and each.statement is launch.statement]
        if any(facts.given[id(each)].device_ids != given.device_ids for each in here):
            given = Given(None, idle_behind=given.idle_behind)
        arguments = [f"device_ids={given.device_ids}"] if given.device_ids is not None else []
        lines = [f"ddp.setup({', '.join(arguments)})"]
        apart = [statement for statement in launch.entry.body if not is_main_guard(statement)]
        finder = facts.launch_finder
        trains = finder.effects.comes_to_a_wrap(*apart) or ARGUMENTS in finder.settled.settles(*apart)
        is_importable = len(apart) < len(launch.entry.body) and not trains
        if launch.statement in apart and is_importable:
            lines = ['if __name__ == "__main__":', f"    {lines[0]}"]
        if launch.test is not None:
            lines = [f"if {launch.test}:", f"    ddp.setup({', '.join([*arguments, 'beside_ddp=True'])})"]
        which = NARROWED if launch.narrowed else "starts one process per device"
        reason = f"{which}, before anything that every rank must do alike"
        yield InsertBefore(self.id, facts.source.span(launch.statement), reason, lines)
        behind = _released_behind(facts, given) if launch.test is None else None
        if behind is not None:
            yield InsertAfter(self.id, facts.source.span(behind), _IDLE, ["ddp.release_idle()"])
        yield from self._late(facts, launch, are_chosen=given.are_chosen)
        yield from self._above(facts, launch)

    def _above(self, facts: Facts, launch: Launch) -> Iterator[Finding]:
        """What is done above the place, and who else comes there."""
        assert launch.statement is not None
        around = facts.source.function(launch.statement)
        is_elsewhere = facts.source.module(launch.statement) is not launch.entry
        if around is not None and is_elsewhere and not facts.launch_finder.effects.leads_to_a_wrap(around):
            yield Note(self.id, facts.source.span(launch.statement), *_FOR_OTHERS)
        for call in launch.early[:1]:
            yield Note(self.id, facts.source.span(call), *(_EARLY if launch.test is None else _EARLY_BESIDE))
        for call in launch.folders:
            yield self._may_exist(facts, call)

    def _may_exist(self, facts: Facts, call: ast.Call) -> ReplaceExpr:
        """`os.makedirs(path, exist_ok=True)`, as another process may be faster."""
        is_single = facts.names.qualified(call.func) == "os.mkdir" and isinstance(call.func, ast.Attribute)
        function = call.func.value if is_single else call.func  # type: ignore[attr-defined]
        holes = {"f": facts.source.span(function)}
        given = []
        kept = [*call.args[:2], *(each for each in call.keywords if each.arg != "exist_ok")]
        for number, each in enumerate(kept):
            holes[f"a{number}"] = facts.source.span(each.value if isinstance(each, ast.keyword) else each)
            name = f"{each.arg}=" if isinstance(each, ast.keyword) else ""
            given.append(f"{name}__h_a{number}__")
        text = f"__h_f__{'.makedirs' * is_single}({', '.join([*given, 'exist_ok=True'])})"
        reason = "all processes come here, before they know each other"
        return ReplaceExpr(self.id, facts.source.span(call), reason, text, holes)

    def _late(self, facts: Facts, launch: Launch, *, are_chosen: bool) -> Iterator[Note]:
        """What is settled behind the start and should have come before it."""
        for kind, node in reversed(dict(reversed(launch.late)).items()):
            if facts.launch_finder.settled.runs_the_program(node):
                continue  # where `fire.Fire()` parses, it starts the functions as well: nothing can come between
            if kind == ARGUMENTS or not are_chosen:
                what, todo = _LATE[kind]
                lost = untold_condition(facts, launch) if kind == ARGUMENTS else None
                also = f", and so does a run in which `{lost}` is false" if lost is not None else ""
                yield Note(self.id, facts.source.span(node), what + also, todo)


def _released_behind(facts: Facts, given: Given) -> ast.stmt | None:
    """The statement behind which each script that comes there has wrapped its models, or wraps none."""
    for statement in given.idle_behind:
        coming = (launch for launch in facts.launches if facts.comes_to(launch, statement))
        if all(statement in facts.given[id(launch)].idle_behind for launch in coming):
            return statement
    return None


def _logs_begun_early(facts: Facts, above: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """The logs in files that modules begin while they are imported."""
    for statement in above:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            calls = [node for node in facts.launch_finder.effects.runs(statement) if isinstance(node, ast.Call)]
            for call in calls:
                path = facts.names.qualified(call.func) or ""
                is_begun = path == "logging.basicConfig" and keyword(call, "filename") is not None
                if (path.startswith(_LOGS) or is_begun) and not _is_left_out(facts, call, calls):
                    yield call


def _is_left_out(facts: Facts, node: ast.expr, calls: Sequence[ast.Call]) -> bool:
    """Whether a line runs only where its function is given what none of these calls gives: `if folder:`."""
    function = facts.source.function(node)
    if function is None:
        return False
    given = {name for call in calls for called, name, _ in facts.resolver.arguments(call) if called is function}
    false = {name for name, value in defaults(function.args) if isinstance(value, ast.Constant) and not value.value}
    return any(isinstance(each, ast.Name) and each.id in false - given for each in terms(facts.source, node))


def _built_early(facts: Facts, above: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """The models that modules build while they are imported, unless a seed makes them one on all ranks."""
    built: dict[ast.stmt, ast.Call] = {}
    for statement in above:
        for node in facts.launch_finder.effects.runs(statement):
            if not isinstance(node, ast.Call) or any(isinstance(n, ast.Lambda) for n in facts.source.ancestors(node)):
                continue
            if facts.names.qualified(node.func) == "torch.manual_seed":
                yield from built.values()
                return
            is_imported = isinstance(statement, (ast.Import, ast.ImportFrom)) and facts.source.function(node) is None
            moves = isinstance(node.func, ast.Attribute) and facts.resolver.holds(node.func.value, Module)
            if is_imported and not moves and facts.resolver.holds(node, Module) and _draws(facts, node):
                built.setdefault(facts.source.statement(node), node)
    yield from built.values()


# What has no weights that are drawn as it is built.
_CONSTANT = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(Module\w*|Sequential|Identity|Flatten|Unflatten|\w*(Pool|Pad|Norm|Dropout|Loss|Softmax|"
    r"Sigmoid|Tanh|ELU|ReLU|SiLU|Softplus|Upsampl|Unfold|Fold|Shuffle|Similarity|Distance)\w*)|builtins\..*|"
    r"torch\.(?!rand|normal|bernoulli|multinomial|poisson|empty)\w+|(numpy|scipy|librosa|math|os|copy|functools)\.(?!random|stats).*"
)


def _draws(facts: Facts, call: ast.Call) -> bool:
    """Whether building a model draws its weights and leaves them, as far as can be told: a pooling layer has none."""
    calls = [node for node in facts.launch_finder.effects.runs(call) if isinstance(node, ast.Call)]
    if any(isinstance(each.func, ast.Attribute) and each.func.attr == "load_state_dict" for each in calls):
        return False
    paths = (facts.names.qualified(each.func) for each in calls if not facts.resolver.functions_called(each))
    return any(path is not None and not _CONSTANT.fullmatch(path) for path in paths)
