"""The flows of all scripts that were converted; in several processes where there are many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from dp2ddp.analysis.facts import Facts
from dp2ddp.convert import pipeline
from dp2ddp.convert.page.flow import Flow, flow_of
from dp2ddp.convert.plan import decide
from dp2ddp.convert.programs import Program
from dp2ddp.rules import Options

#: Below so many scripts, starting processes costs more than it saves.
_MANY = 4


def flows_of(programs: Sequence[Program], options: Options) -> list[Flow]:
    """The flow of each program that has a model on several devices, analysed by itself."""
    one = partial(_flow, options=options)
    count = min(os.cpu_count() or 1, len(programs))
    if count < 2 or len(programs) < _MANY:
        return [flow for flow in map(one, programs) if flow is not None]
    with ProcessPoolExecutor(count) as pool:
        return [flow for flow in pool.map(one, programs) if flow is not None]


def _flow(program: Program, options: Options) -> Flow | None:
    source, _, _ = pipeline.linked(program.files, {program.entry: program.functions})
    facts = Facts.of(source, sync_bn=options.sync_bn, allow_ddp=options.allow_ddp)
    return flow_of(facts, decide(facts, options), program.entry) if facts.parallel else None
