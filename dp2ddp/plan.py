"""Facts to plan: which strategy each wrapped model gets, and every edit that the rules ask for."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.source import Source
from dp2ddp.edits import Edit, Finding, Note
from dp2ddp.rules import Options, all_rules
from dp2ddp.rules.unsupported import UnsupportedRule


@dataclass(frozen=True)
class StrategyDecision:
    """The strategy of one wrapped model.

    Attributes:
        model: the model, as the script writes it.
        strategy: `"sharded"` or `"gathered"`.
        reason: why, in a few words, with the line that decided it.
        line: the line of the wrap.
    """

    model: str
    strategy: str
    reason: str
    line: int


@dataclass(frozen=True)
class Plan:
    """All that is to be done to a script.

    Attributes:
        edits: in the order of the rules, each rule's in the order of the source.
        notes: what needs a person.
        strategies: one for each wrapped model.
        nothing_to_do: the script uses no `DataParallel`.
        refused: a use of `DataParallel` can't be converted, so nothing is; the notes say which.
    """

    edits: Sequence[Edit] = ()
    notes: Sequence[Note] = ()
    strategies: Sequence[StrategyDecision] = ()
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
        return Plan(nothing_to_do=True)
    facts.beside_ddp = options.allow_ddp and facts.own_ddp.present
    facts.lenient = options.strategy == "sharded"
    strategy, reason = _strategy(facts, options)
    facts.strategy = strategy
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
    models: list[tuple[ast.expr, ast.expr]] = [(w.model or w.call, w.call) for w in facts.wraps.models]
    models += [(c.args[0] if c.args else c, c) for c in facts.wraps.functional]
    models += [(value, value) for value in facts.wraps.values]
    decisions = [StrategyDecision(source.brief(model), strategy, reason, call.lineno) for model, call in models]
    refused = bool(facts.blockers)
    return Plan(edits, notes, [] if refused else decisions, refused=refused)


def _left_out(finding: Finding) -> Note:
    """An edit that is left to a person. A note stays one: it says what to look at, not what was done."""
    if isinstance(finding, Note):
        return finding
    todo = f"do it by hand, or convert without --ignore {finding.rule}"
    return Note(finding.rule, finding.span, f"left as it is by --ignore: {finding.reason}", todo)


def _strategy(facts: Facts, options: Options) -> tuple[str, str]:
    if options.strategy == "gathered":
        return "gathered", "asked for"
    whole = facts.whole_batches or (facts.detour if options.strategy == "auto" else None)
    if whole is not None:
        node, why = whole
        return "gathered", f"{why} ({facts.source.where(node)})"
    if not facts.sharded_sites:
        return "gathered", "no loop over a DataLoader of this script feeds the model"
    proof = facts.proof
    outputs = facts.gathers_in_training
    if proof.holds and outputs and options.strategy == "auto":
        place = f"`{facts.source.brief(outputs[0], 40)}`, {facts.source.where(outputs[0])}"
        return "gathered", f"every training step needs the whole batch's outputs ({place}), so sharding saves nothing"
    if proof.holds:
        why = "the loss is a mean over samples, and every number that leaves the loops can be reduced"
        return "sharded", why if options.strategy == "auto" else f"asked for; proved, too: {why}"
    first = min(proof.failures, key=lambda f: facts.source.span(f.node))
    place = f"`{facts.source.brief(first.node, 40)}`, {facts.source.where(first.node)}"
    if options.strategy == "sharded":
        return "sharded", f"asked for, but not proved: {first.reason} ({place})"
    return "gathered", f"{first.reason} ({place})"
