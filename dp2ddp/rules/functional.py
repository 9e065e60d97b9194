"""DDP017: the functional form."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.visible import means_all, written
from dp2ddp.analysis.wraps.wraps import starred_inputs
from dp2ddp.rewrite.edits import Finding, RemoveStatement, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import argument


class FunctionalRule(Rule):
    """`nn.parallel.data_parallel(module, inputs, ids)` becomes `ddp.data_parallel(module, inputs)`."""

    id = "DDP017"
    title = "Run the functional form over the ranks"
    effect = "wraps the model: one replica in each process"
    why = (
        "`nn.parallel.data_parallel` copies the module to all devices in each call. `ddp.data_parallel` splits the "
        "inputs over the ranks and gathers the outputs; the module's gradients are summed from its first call on. "
        "Keys of checkpoints don't change, because the module itself isn't wrapped. A guard such as "
        "`if x.is_cuda and ngpu > 1` stays: where it is false, every rank computes the same."
    )
    essential = True
    examples = (
        Example(
            before="""\
import torch.nn as nn
import torch.nn.parallel

class Generator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Linear(4, 2)

    def forward(self, x):
        if x.is_cuda and self.ngpu > 1:
            return nn.parallel.data_parallel(self.main, x, range(self.ngpu))
        return self.main(x)
""",
            after="""\
import torch.nn as nn
import torch.nn.parallel
import dp2ddp_runtime as ddp

class Generator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Linear(4, 2)

    def forward(self, x):
        if x.is_cuda and self.ngpu > 1:
            return ddp.data_parallel(self.main, x)
        return self.main(x)
""",
        ),
        Example(
            before="""\
import torch.nn as nn

def data_parallel(module, input, device_ids, output_device):
    if not device_ids:
        return module(input)
    replicas = nn.parallel.replicate(module, device_ids)
    inputs = nn.parallel.scatter(input, device_ids)
    replicas = replicas[:len(inputs)]
    outputs = nn.parallel.parallel_apply(replicas, inputs)
    return nn.parallel.gather(outputs, output_device)
""",
            after="""\
import torch.nn as nn
import dp2ddp_runtime as ddp

def data_parallel(module, input, device_ids, output_device):
    if not device_ids:
        return module(input)
    return ddp.data_parallel(module, input)
""",
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn

def data_parallel(net, ids):  # the script's own: its wrap is DDP002's
    return nn.DataParallel(net, ids)

net = data_parallel(nn.Linear(4, 2), [0, 1])
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        reason = "splits the inputs over the ranks and gathers the outputs"
        for call in facts.wraps.functional:
            written = facts.wraps.written_out.get(call)
            if written is not None:
                for statement in written.steps:
                    yield RemoveStatement(self.id, facts.source.span(statement), "is `ddp.data_parallel`'s")
                given = [facts.source.segment(written.module), facts.source.segment(written.inputs)]
                yield ReplaceExpr(self.id, facts.source.span(call), reason, f"ddp.data_parallel({', '.join(given)})")
                continue
            starred = starred_inputs(call)
            if starred is not None:
                holes = {"module": facts.source.span(call.args[0]), "inputs": facts.source.span(starred)}
                template = "ddp.data_parallel(__h_module__, *__h_inputs__)"
                yield ReplaceExpr(self.id, facts.source.span(call), reason, template, holes)
                continue
            holes = {}
            given = []
            for position, name in enumerate(
                ("module", "inputs", "device_ids", "output_device", "dim", "module_kwargs")
            ):
                value = argument(call, position, name)
                if value is None or name == "output_device" or _is_default(name, value):
                    continue
                if name == "device_ids" and (means_all(facts, value) or _is_known(facts, value)):
                    continue
                holes[name] = facts.source.span(value)
                given.append(f"__h_{name}__" if position < len(("module", "inputs")) else f"{name}=__h_{name}__")
            template = f"ddp.data_parallel({', '.join(given)})"
            yield ReplaceExpr(self.id, facts.source.span(call), reason, template, holes)


def _is_known(facts: Facts, device_ids: ast.expr) -> bool:
    """Whether `ddp.setup()` can be given them."""
    launches = (each for each in facts.launches if each.statement is not None and facts.comes_to(each, device_ids))
    return all(written(facts, launch, device_ids) is not None for launch in launches)


def _is_default(name: str, value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value in ((0,) if name == "dim" else (None,))
