"""Facts to plan: every edit that the rules ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Edit, Finding, Note
from dp2ddp.rules import Options, all_rules
from dp2ddp.rules.unsupported import UnsupportedRule
from dp2ddp.source.program import Source


@dataclass(frozen=True)
class Plan:
    """All that is to be done to a script.

    Attributes:
        edits: in the order of the rules, each rule's in the order of the source.
        notes: what needs a person.
        nothing_to_do: the script uses no `DataParallel`.
        refused: a use of `DataParallel` can't be converted, so nothing is; the notes say which.
    """

    edits: Sequence[Edit] = ()
    notes: Sequence[Note] = ()
    nothing_to_do: bool = False
    refused: bool = False


def plan(source: Source, options: Options) -> Plan:
    """Plan the conversion of a script."""
    if not source.mentions("DataParallel") and not source.mentions("data_parallel"):
        return Plan(nothing_to_do=True)
    facts = Facts.of(source)
    wraps = facts.wraps
    facts.sync_bn = options.sync_bn
    if not any((wraps.models, wraps.optimizers, wraps.functional, wraps.values, wraps.type_checks, facts.blockers)):
        found = UnsupportedRule().edits(facts, options) if options.runs(UnsupportedRule.id) else ()
        return Plan(notes=[each for each in found if isinstance(each, Note)], nothing_to_do=True)
    facts.beside_ddp = options.allow_ddp and facts.own_ddp.present
    rules = [rule for rule in all_rules() if options.runs(rule.id)]
    if facts.blockers:
        # Half a conversion would train something else: where one wrap can't be converted, none is.
        rules = [rule for rule in all_rules() if isinstance(rule, UnsupportedRule)]
    for rule in rules:
        rule.prepare(facts, options)
        facts.wrap_keywords.update(rule.wrap_keywords(facts, options))
    findings = [finding for rule in rules for finding in rule.edits(facts, options)]
    findings = [_left_out(finding) if finding.rule in options.ignore else finding for finding in findings]
    if facts.beside_ddp:
        own = facts.own_ddp.spans
        findings = [finding for finding in findings if not any(span.contains(finding.span) for span in own)]
    notes = list(dict.fromkeys(f for f in findings if isinstance(f, Note)))
    edits = [f for f in findings if isinstance(f, Edit)]
    return Plan(edits, notes, refused=bool(facts.blockers))


def _left_out(finding: Finding) -> Note:
    """An edit that is left to a person. A note stays one: it says what to look at, not what was done."""
    if isinstance(finding, Note):
        return finding
    todo = f"do it by hand, or convert without --ignore {finding.rule}"
    return Note(finding.rule, finding.span, f"left as it is by --ignore: {finding.reason}", todo)
