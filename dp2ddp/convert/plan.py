"""Facts to plan: every edit that the rules ask for, but those that `--ignore` leaves to a person."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dp2ddp.analysis.facts import Facts
from dp2ddp.errors import blamed
from dp2ddp.project import wrapcalls
from dp2ddp.rewrite.edits import Done, Edit, Finding, Note
from dp2ddp.rules import Decisions, Options, all_rules
from dp2ddp.source.program import ParsedProgram


@dataclass(frozen=True)
class Plan:
    """All that is to be done to a script.

    Attributes:
        edits: in the order of the rules, each rule's in the order of the source.
        notes: what needs a person.
        unreached: functions, methods, classes and main guards that would have had some, and that no script with a wrap
            comes to; with what to call them.
        on_one_device: the files of scripts whose every wrap is written for one device, so nothing is to be done.
        refused: a use of `DataParallel` can't be converted, so nothing is; the notes say which.
    """

    edits: Sequence[Edit] = ()
    notes: Sequence[Note] = ()
    unreached: Sequence[tuple[ast.stmt, str]] = ()
    on_one_device: Collection[ast.Module] = ()
    refused: bool = False


def plan(source: ParsedProgram, options: Options) -> Plan:
    """Plan the conversion of a script."""
    if not any(map(source.mentions, wrapcalls.CALLED)):
        return Plan()
    return decide(
        Facts.of(source, sync_bn=options.sync_bn, allow_ddp=options.allow_ddp, functions=options.functions), options
    )


def decide(facts: Facts, options: Options) -> Plan:
    """Plan the conversion of a script of which the facts are at hand."""
    if facts.blockers or not facts.wraps.found:
        # Half a conversion would train something else: where one wrap can't be converted, none is.
        rules = [each for each in all_rules() if each.explains]
    else:
        rules = [each for each in all_rules() if options.runs(each.id)]
    decisions = Decisions(options, {k: v for each in rules for k, v in each.wrap_keywords(facts, options).items()})
    findings: list[Finding] = []
    for each in rules:
        with blamed(rule=each.id):
            findings += each.edits(facts, decisions)
    findings = [_ignored(finding) if finding.rule in options.ignore else finding for finding in findings]
    if facts.beside_ddp:
        own = facts.own_ddp.spans
        findings = [finding for finding in findings if not any(span.contains(finding.span) for span in own)]
    idle: list[tuple[ast.stmt, str]] = []
    if facts.parallel and not facts.blockers:
        findings, idle = _reached(facts, findings)
    if facts.wraps.idle and not facts.wraps.found and not facts.blockers:
        findings = [_never_reached(facts, node) for node in facts.wraps.idle]
    notes = list(dict.fromkeys(f for f in findings if isinstance(f, Note)))
    edits = [f for f in findings if isinstance(f, Edit)] if facts.wraps.found else []
    return Plan(edits, notes, idle, facts.on_one_device, refused=bool(facts.blockers))


def _reached(facts: Facts, findings: Sequence[Finding]) -> tuple[list[Finding], list[tuple[ast.stmt, str]]]:
    """What is to be done where a script with a wrap comes to, and the parts of files that this leaves as they are."""
    reached: list[Finding] = []
    spans = [(part, facts.source.span(part[0])) for part in facts.unreached]
    left = [facts.source.span(node) for node in facts.wraps.idle]
    for finding in findings:
        if facts.source.file_of_line(finding.span.start.line).tree in facts.on_one_device:
            continue
        if isinstance(finding, Done) or not any(span.contains(finding.span) for _, span in spans):
            reached.append(finding)
        else:
            left.append(finding.span)
    return reached, [part for part, span in spans if any(map(span.contains, left))]


def _never_reached(facts: Facts, node: ast.expr) -> Note:
    """All wraps are where no script comes to, as far as is seen: not in silence, as it may see too little."""
    what = "no script is seen to come to this `DataParallel`, so nothing is converted"
    return Note(
        "DDP002", facts.source.span(node), what, "if one does, name it, or the function that does, with --entry"
    )


def _ignored(finding: Finding) -> Note:
    """An edit that is left to a person. A note stays one: it says what to look at, not what was done."""
    if isinstance(finding, Note):
        return finding
    todo = f"do it by hand, or convert without --ignore {finding.rule}"
    return Note(finding.rule, finding.span, f"left as it is by --ignore: {finding.reason}", todo)
