"""The flows of all scripts that were converted; in several processes where there are many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from dp2ddp.analysis.facts import Facts
from dp2ddp.convert import pipeline
from dp2ddp.convert.page.flow import Flow
from dp2ddp.convert.page.reading import flow_of
from dp2ddp.convert.plan import decide
from dp2ddp.convert.programs import Program, groups
from dp2ddp.rules import Options

#: Below so many groups of scripts, starting processes costs more than it saves.
_MANY = 4


def flows_of(converted: Sequence[Program], options: Options) -> list[Flow]:
    """The flow of each program that has a model on several devices; those that share files are analysed together."""
    work = groups(converted)
    do = partial(_flows, options=options)
    count = min(os.cpu_count() or 1, len(work))
    if count < 2 or len(work) < _MANY:
        found = [flow for each in work for flow in do(each)]
    else:
        with ProcessPoolExecutor(count) as pool:
            found = [flow for flows in pool.map(do, work) for flow in flows]
    order = {program.entry: number for number, program in enumerate(converted)}
    return sorted(found, key=lambda flow: order[flow.entry])


def _flows(programs: Sequence[Program], options: Options) -> list[Flow]:
    files = {path: text for program in programs for path, text in program.files.items()}
    source, _, _ = pipeline.linked(files, {program.entry: program.functions for program in programs})
    facts = Facts.of(source, sync_bn=options.sync_bn, allow_ddp=options.allow_ddp)
    if not facts.parallel:
        return []
    plan = decide(facts, options)
    return [flow_of(facts, plan, program.entry, program.files) for program in programs]
