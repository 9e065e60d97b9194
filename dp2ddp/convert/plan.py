"""Facts to plan: every edit that the rules ask for, but those that `--ignore` or a comment leaves to a person.

`# dp2ddp: ignore[DDP011]` behind a line leaves its edits of that rule to a person; without rules, all of them. As with
`--ignore`, each becomes a note, and what the other rules need can't be left out: so no comment makes a conversion wrong
in silence.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.facts import Facts
from dp2ddp.errors import BadInput
from dp2ddp.project import wrapcalls
from dp2ddp.rewrite.edits import Edit, Finding, Note
from dp2ddp.rules import Options, all_rules, check_ignored, rule
from dp2ddp.rules.launch import LaunchRule
from dp2ddp.source.program import File, ParsedProgram
from dp2ddp.source.spans import Span

_COMMENT = re.compile(r"(?:^|\s)#\s*dp2ddp:\s*ignore\b(?P<rest>.*)")
_RULES = re.compile(r"\s*\[(?P<rules>[^\]]*)\]")


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
    return decide(Facts(source, allow_ddp=options.allow_ddp, sync_bn=options.sync_bn, catalogue=catalogue), options)


def decide(facts: Facts, options: Options) -> Plan:
    """Plan the conversion of a program of which the facts are at hand."""
    if not facts.entries:  # but for what may mean DataParallel, as nobody can tell
        told = (each for rule in all_rules() if rule.explains for each in rule.edits(facts, options))
        return Plan(notes=[each for each in told if isinstance(each, Note)])
    # Half a conversion would train something else: where one wrap can't be converted, none is.
    wanted = [each for each in all_rules() if options.runs(each.id) and (facts.wraps_models or each.always)]
    rules = [each for each in all_rules() if each.explains or (each in wanted and not facts.blockers)]
    findings: list[Finding] = []
    for each in rules:
        found = each.edits(facts, options)
        findings += found if each.explains else _once_a_file(facts, found)
    trials = [facts.span(node) for tree in facts.modules for node in tree.body if facts.is_trial(node)]
    findings = [each for each in findings if _is_about(facts, each, trials)]
    findings = [_ignored(finding) if finding.rule in options.ignore else finding for finding in findings]
    if not facts.blockers:
        findings = _without_commented(findings, facts.source)
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


@dataclass(frozen=True)
class _Comment:
    """One comment. Its lines are counted through the program, as those of findings.

    Attributes:
        file: in which it stands.
        line: where.
        statement: the first and the last line of the statement (its head, if it has a block) on which it stands.
        rules: those that it names; empty for all.
    """

    file: File
    line: int
    statement: tuple[int, int]
    rules: Sequence[str]

    def is_about(self, edit: Edit) -> bool:
        """Whether an edit is on its line; behind a statement of several lines it is about all of them."""
        if edit.rule == LaunchRule.id or (self.rules and edit.rule not in self.rules):
            return False  # `ddp.setup()` is a line of its own, and changes none
        (start, _), (end, _) = edit.span
        first, last = self.statement
        return first <= start <= last and self.line in (start, end, last)

    @property
    def text(self) -> str:
        return f"# dp2ddp: ignore[{', '.join(self.rules)}]" if self.rules else "# dp2ddp: ignore"

    @property
    def place(self) -> int:
        """The line in its file."""
        return self.line - self.file.before


def _without_commented(findings: Iterable[Finding], source: ParsedProgram) -> list[Finding]:
    """The findings, with notes in the place of edits that comments leave to a person.

    Raises:
        BadInput: a comment names no rule, or leaves out what the other rules need.
    """
    comments = [comment for file in source.files for comment in _comments(file)]
    if not comments:
        return list(findings)
    return [_left_out(finding, comments) for finding in findings]


def _left_out(finding: Finding, comments: Sequence[_Comment]) -> Finding:
    comment = next((each for each in comments if isinstance(finding, Edit) and each.is_about(finding)), None)
    if comment is None or isinstance(finding, Note):
        return finding
    asked = rule(finding.rule)
    if asked is not None and asked.essential:
        raise BadInput(
            comment.file.name,
            line=comment.place,
            what=f"{finding.rule} can't be left out here ({asked.title})",
            todo="name the rules to ignore: # dp2ddp: ignore[...]",
        )
    what = f"left as it is by `{comment.text}`: {finding.reason}"
    return Note(finding.rule, finding.span, what, "do it by hand, or take the comment away")


def _comments(file: File) -> Iterator[_Comment]:
    if "dp2ddp:" not in file.text:
        return
    first: int | None = None
    inside: list[tuple[int, str]] = []
    text = "\n".join(file.lines)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            match = _COMMENT.search(token.string)
            if match:
                inside.append((token.start[0], match["rest"]))
        elif token.type in (tokenize.NEWLINE, tokenize.NL) and (token.type == tokenize.NEWLINE or first is None):
            yield from _of_statement(file, first or token.start[0], token.start[0], inside)
            first, inside = None, []
        elif first is None and token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            first = token.start[0]


def _of_statement(file: File, first: int, last: int, found: Iterable[tuple[int, str]]) -> Iterator[_Comment]:
    for line, rest in found:
        statement = (file.before + first, file.before + last)
        yield _Comment(file, file.before + line, statement, _named(rest, file.name, line))


def _named(rest: str, file: str, line: int) -> list[str]:
    """The rules that a comment names behind ``ignore``; none for all."""
    listed = _RULES.match(rest)
    if listed is None:
        return []
    names = [name.strip() for name in listed["rules"].split(",") if name.strip()]
    if not names:
        raise BadInput(
            file, line=line, what="no rule to ignore between the brackets", todo="name one, or take them away"
        )
    return [check_ignored(name, file, line) for name in names]
