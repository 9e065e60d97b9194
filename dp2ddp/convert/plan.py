"""Facts to plan: every edit that the rules ask for, but those that `--ignore` or a comment leaves to a person.

`# dp2ddp: ignore[DDP011]` behind a line leaves its edits of that rule to a person; without rules, all of them. As with
`--ignore`, each becomes a note, and what the other rules need can't be left out: so no comment makes a conversion wrong
in silence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.facts import Facts
from dp2ddp.errors import BadInput
from dp2ddp.project import wrapcalls
from dp2ddp.rewrite.edits import Edit, Finding, Note
from dp2ddp.rules import Options, all_rules, known_id, rule
from dp2ddp.rules.launch import LaunchRule
from dp2ddp.source.program import File, ParsedProgram
from dp2ddp.source.spans import Span

_COMMENT = re.compile(r"#\s*dp2ddp:\s*ignore\b(?:\s*\[(?P<rules>[^\]]*)\])?[^\"']*$")


@dataclass(frozen=True)
class Plan:
    """All that is to be done to a script.

    Attributes:
        edits: in the order of the rules, each rule's in the order of the source.
        notes: what needs a person.
        refused: a use of `DataParallel` can't be converted, so nothing is; the notes say which.
    """

    edits: Sequence[Edit] = ()
    notes: Sequence[Note] = ()
    refused: bool = False


def plan(source: ParsedProgram, options: Options) -> Plan:
    """Plan the conversion of a script."""
    if not any(map(source.mentions, wrapcalls.CALLED)):
        return Plan()
    catalogue = Catalogue(options.functions)
    facts = Facts(source, allow_ddp=options.allow_ddp, sync_bn=options.sync_bn, catalogue=catalogue)
    if not facts.entries:  # but for what may mean DataParallel, as nobody can tell
        told = (each for rule in all_rules() if rule.explains for each in rule.edits(facts, options))
        return Plan(notes=[each for each in told if isinstance(each, Note)])
    # Half a conversion would train something else: where one wrap can't be converted, none is.
    selected = [each for each in all_rules() if not options.select or each.id in options.select]
    wanted = [each for each in selected if facts.wraps_models or each.always]
    rules = [each for each in all_rules() if each.explains or (each in wanted and not facts.blockers)]
    findings: list[Finding] = []
    for each in rules:
        found = each.edits(facts, options)
        findings += found if each.explains else _once_a_file(facts, found)
    trials = [facts.span(node) for tree in facts.modules for node in tree.body if facts.is_trial(node)]
    findings = [each for each in findings if _is_about(facts, each, trials)]
    findings = [_ignored(finding) if finding.rule in options.ignore else finding for finding in findings]
    if not facts.blockers:
        findings = [_left_out(each, facts.source) for each in findings]
    notes = list(dict.fromkeys(f for f in findings if isinstance(f, Note)))
    edits = [f for f in findings if isinstance(f, Edit)] if not facts.blockers else []
    return Plan(edits, notes, refused=bool(facts.blockers))


def _is_about(facts: Facts, finding: Finding, trials: Sequence[Span]) -> bool:
    """Whether it is in a file that is converted, and neither in a branch for the script's own distributed training nor
    in what a file does only when it is started itself, which it isn't.
    """
    module = facts.source.file_of_line(finding.span.start.line).tree
    return module in facts.modules and not any(span.contains(finding.span) for span in (*facts.own_ddp, *trials))


def _once_a_file(facts: Facts, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, of notes that say the same of a file the first."""
    told = set()
    for each in findings:
        key = (each.what, facts.source.file_of_line(each.span.start.line).name) if isinstance(each, Note) else None
        if key is None or key not in told:
            told.add(key)
            yield each


def _ignored(finding: Finding) -> Note:
    """An edit that is left to a person. A note stays one: it says what to look at, not what was done."""
    if isinstance(finding, Note):
        return finding
    todo = f"do it by hand, or convert without --ignore {finding.rule}"
    return Note(finding.rule, finding.span, f"left as it is by --ignore: {finding.reason}", todo)


def _left_out(finding: Finding, source: ParsedProgram) -> Finding:
    """The finding; a note in its place where it is an edit that a comment leaves to a person.

    Raises:
        BadInput: the comment names no rule, or leaves out what the other rules need.
    """
    if isinstance(finding, Note) or finding.rule == LaunchRule.id:
        return finding  # `ddp.setup()` is a line of its own, and changes none
    file = source.file_of_line(finding.span.start.line)
    for line in _lines(finding.span, file) if "dp2ddp:" in file.text else ():
        comment = _COMMENT.search(file.lines[line - 1 - file.before])
        listed = comment and comment["rules"]
        names = [] if listed is None else [each.strip() for each in listed.split(",")]
        rules = [known_id(each, file.name, line - file.before, ignored=True) for each in names]
        if comment is None or (rules and finding.rule not in rules):
            continue
        asked = rule(finding.rule)
        if asked is not None and asked.essential:
            raise BadInput(
                file.name,
                line=line - file.before,
                what=f"{finding.rule} can't be left out here ({asked.title})",
                todo="name the rules to ignore: # dp2ddp: ignore[...]",
            )
        what = f"left as it is by `# dp2ddp: ignore`: {finding.reason}"
        return Note(finding.rule, finding.span, what, "do it by hand, or take the comment away")
    return finding


def _lines(span: Span, file: File) -> list[int]:
    """Where a comment may stand: on the first or the last line of what changes, or behind its statement."""
    simple = (n for n in ast.walk(file.tree) if isinstance(n, ast.stmt) and not hasattr(n, "body"))
    ends = (n.end_lineno or 0 for n in simple if n.lineno <= span.start.line <= (n.end_lineno or 0))
    return list(dict.fromkeys([span.start.line, max(span.start.line, span.end.line), *ends]))
