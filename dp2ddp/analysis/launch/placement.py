"""Where the processes may start: after the arguments are parsed and the devices chosen, before anything is built."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dp2ddp.analysis.control.callers import Callers
from dp2ddp.analysis.control.loops import Loops
from dp2ddp.analysis.launch.bound import Bound, bound_names
from dp2ddp.analysis.launch.effects import Effects
from dp2ddp.analysis.launch.settled import DEVICES, Settled
from dp2ddp.analysis.roles import Resolver, Table
from dp2ddp.source.names import Names, Own
from dp2ddp.source.nodes import given_to, is_main_guard, parameters
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

_DECLARING = (ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class Launch:
    """The place for `ddp.setup(...)`.

    Attributes:
        entry: the module that is started.
        statement: setup goes right before it; None where nothing in the module has an effect.
        visible: the names that are bound there.
        late: what should have come before it and doesn't: what parses `settled.ARGUMENTS`, what chooses
            `settled.DEVICES`, in the order of the text.
        narrowed: whether the script chooses devices before it.
        folders: calls that make folders, before it, and that must not mind another process being faster.
        early: calls that write files before it, in each process.
        apart: what only other functions come to, where one of several is called.
        test: under which the processes start, beside the script's own DistributedDataParallel; None for always.
    """

    entry: ast.Module
    statement: ast.stmt | None
    visible: frozenset[str]
    late: Sequence[tuple[str, ast.AST]] = ()
    narrowed: bool = False
    folders: Sequence[ast.Call] = ()
    early: Sequence[ast.Call] = ()
    apart: frozenset[ast.AST] = frozenset()
    test: str | None = None


@dataclass(frozen=True)
class _Step:
    """A statement that the script comes to.

    Attributes:
        bound: the names that are bound there.
        parts: what of it runs: all of it, or what stands before the function that it calls, where the way goes on.
        picks: whether it calls one of several functions, others of which may not wrap.
    """

    statement: ast.stmt
    bound: Bound
    parts: Sequence[ast.AST]
    picks: bool = False


@dataclass(frozen=True)
class _Inside:
    """The statements that a statement runs: those of a block in it, or of the function that it calls.

    Attributes:
        before: what of the statement itself runs before them.
        after: what runs behind them.
    """

    block: list[ast.stmt]
    before: Sequence[ast.AST] = ()
    function: FunctionNode | None = None
    after: Sequence[ast.AST] = ()


class LaunchFinder:
    """Walks the script in the order in which it runs, up to the place."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver, loops: Loops, callers: Callers) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self.callers = callers
        self.effects = Effects(source, names, resolver, loops, callers)
        self.settled = Settled(source, names, resolver, self.effects)

    def find(self, entry: ast.Module, unknown: Callable[[Launch], int]) -> list[Launch]:
        """The places where `entry` is started: as a script, and by each of its functions that commands call.

        Args:
            unknown: how much of what the processes have to be told isn't known at a place.
        """
        names = self.source.commands.get(self.source.file(entry).name, ())
        several = [] if names else self._commands(entry)
        bound = self._bound_at_end(entry) if several else frozenset()
        ways = [(self._steps(one.body, Bound(bound | parameters(one)), (one,)), one) for one in several]
        if not names and not several:
            several = [*dict.fromkeys(one for call in self._calls(entry) for one in self._picked(call))]
            ways = [(self._steps(entry.body, Bound(frozenset()), (), one), one) for one in several]
        if several:
            return _once(self._find(entry, way, unknown, self._apart(one, several)) for way, one in ways)
        if not names:
            return [self._find(entry, self._steps(entry.body, Bound(frozenset()), ()), unknown)]
        found = [self._find(entry, self._steps_of(entry, name), unknown) for name in names]
        # What the module does while it is imported comes before its commands.
        guarded = [statement for statement in entry.body if is_main_guard(statement)]
        if self.effects.comes_to_a_wrap(*guarded):
            way = self._steps(guarded, Bound(self._bound_at_end(entry)), ())
            found.append(self._find(entry, way, unknown))
        return _once(found)

    def _commands(self, entry: ast.Module) -> list[FunctionNode]:
        """The functions that lead to a wrap, where one of several is called, as the arguments say: click's commands."""
        found = dict.fromkeys(one for call in self._calls(entry) for one in self.settled.all_handed(call))
        return [*found] if len(found) > 1 else []

    def _apart(self, one: FunctionNode, several: Sequence[FunctionNode]) -> frozenset[ast.AST]:
        """What others of several functions come to, and one doesn't."""
        reached = self.effects.loops.reached
        return frozenset(reached(*several)).difference(reached(one))

    def _calls(self, entry: ast.Module) -> Iterator[ast.Call]:
        return (call for call in self.source.calls if self.source.module(call) is entry)

    def _picked(self, call: ast.Call) -> list[FunctionNode]:
        """The functions that lead to a wrap, of those one of which is called, as the arguments say: `args.func()`."""
        if not isinstance(call.func, ast.Attribute) or not self.resolver.holds(call.func.value, Table):
            return []
        found = [each.definition for each in self.resolver.functions_called(call)]
        leading = [each for each in found if self.effects.leads_to_a_wrap(each)]
        is_fine = all(self._is_main(each) and self.source.module(each) is self.source.module(call) for each in leading)
        return leading if is_fine else []

    def _steps_of(self, entry: ast.Module, name: str) -> Iterator[_Step]:
        """The way through the function of that name, be it imported, or a method."""
        first, _, method = name.partition(".")
        own = self.names.follow(entry, first)
        body = own.module.body if isinstance(own, Own) else []
        for part in filter(None, (own.name if isinstance(own, Own) else "", method)):
            found = next((n for n in body if isinstance(n, (*FUNCTIONS, ast.ClassDef)) and n.name == part), None)
            body = [] if found is None else found.body
        return self._steps(body, Bound(self._bound_at_end(entry)), ())

    def _bound_at_end(self, module: ast.Module) -> frozenset[str]:
        return frozenset().union(*map(bound_names, module.body))

    def _find(
        self, entry: ast.Module, way: Iterator[_Step], unknown: Callable[[Launch], int], apart: Iterable[ast.AST] = ()
    ) -> Launch:
        """The place on the way through what is started.

        That is before the first statement that has an effect, unless the arguments are parsed or the devices chosen
        behind it, and all that comes before that is such that every process may do it by itself.
        """
        steps = list(way)
        first = next((i for i, step in enumerate(steps) if not self.effects.inert(*step.parts)), None)
        if first is None:
            return Launch(entry, None, self._bound_at_end(entry))
        chosen, late = self._behind_settings(steps, first)
        places = {number: replace(_at(entry, steps[number], apart), late=late) for number in self._from(steps, chosen)}
        chosen = min(places, key=lambda number: unknown(places[number]))
        before = [part for step in steps[:chosen] for part in step.parts]
        folders, early = self.settled.folders(*before), self.settled.read_back(*before)
        narrowed = DEVICES in self.settled.settles(*before)
        return replace(places[chosen], folders=folders, early=early, narrowed=narrowed)

    def _from(self, steps: Sequence[_Step], chosen: int) -> Iterator[int]:
        """The places from a chosen one on, as far as every process may go by itself."""
        for number in range(chosen, len(steps)):
            yield number
            parts = steps[number].parts
            if self.effects.comes_to_a_wrap(*parts) or not self.settled.repeatable(*parts):
                return
            if self.settled.makes_unknown(*parts):
                return

    def _behind_settings(self, steps: Sequence[_Step], first: int) -> tuple[int, list[tuple[str, ast.AST]]]:
        """The step from `first` on behind which nothing is settled any more, and what is, nevertheless."""
        effects, settled = self.effects, self.settled
        settles = [step.picks or bool(settled.settles(*step.parts)) for step in steps]
        settling = [number for number in range(first, len(steps)) if settles[number]]
        chosen, together = first, False
        late: dict[ast.AST, str] = {}
        for number in range(first, settling[-1] + 1) if settling else ():
            parts = steps[number].parts
            together = together or not settled.repeatable(*parts)
            if number in settling and not together:
                chosen = number + 1
            elif number in settling:
                late.update((node, kind) for kind, node in settled.settling(*parts))
            if together and effects.comes_to_a_wrap(*parts):
                break  # what comes behind a wrap settles nothing for it
        while chosen < len(steps) and effects.inert(*steps[chosen].parts):
            chosen += 1
        for _, node in (each for step in steps[:chosen] for each in settled.settling(*step.parts)):
            late.pop(node, None)  # a module is imported once
        in_order = sorted(late, key=lambda node: (node.lineno, node.col_offset))  # type: ignore[attr-defined]
        return (chosen if chosen < len(steps) else first), [(late[node], node) for node in in_order]

    # -- the way through the script --------------------------------------------------------------------------------

    def _steps(
        self, block: list[ast.stmt], bound: Bound, calls: tuple[FunctionNode, ...], pick: FunctionNode | None = None
    ) -> Iterator[_Step]:
        """The way; of several functions one of which is called, by `pick`."""
        for statement in block:
            inside = self._inside(statement, calls, pick)
            if inside is None:
                yield _Step(statement, bound, [statement])
            else:
                yield _Step(statement, bound, inside.before, inside.function is not None and inside.function is pick)
                function = inside.function
                within = bound if function is None else Bound(frozenset(parameters(function)), bound)
                yield from self._steps(inside.block, within, calls if function is None else (*calls, function), pick)
                if inside.after:
                    yield _Step(statement, bound, inside.after)
            bound = Bound(bound_names(statement), bound)

    def _inside(
        self, statement: ast.stmt, calls: tuple[FunctionNode, ...], pick: FunctionNode | None
    ) -> _Inside | None:
        """Where the way goes on inside a statement, None where it stays outside."""
        if is_main_guard(statement):
            assert isinstance(statement, ast.If)
            return _Inside(statement.body)
        entered = self._entered(statement)
        # (A function of another file may have other callers, in scripts that aren't seen here.)
        here = entered is not None and self.source.module(entered) is self.source.module(statement)
        if entered is not None and here and entered not in calls and self._is_main(entered):
            first = [each for each in entered.decorator_list if self.settled.settles(each)]
            return _Inside(entered.body, [*first, *self._given(statement, entered)], entered)
        for block in (getattr(statement, "body", []), getattr(statement, "orelse", [])):
            if pick and isinstance(statement, (ast.If, ast.Try)) and any(self._picks(each, pick) for each in block):
                return _Inside(block, [statement.test] if isinstance(statement, ast.If) else [])
        call = self._picks(statement, pick) if pick and pick not in calls else None
        if pick and call:
            return _Inside(pick.body, given_to(call), pick)
        for call in _calls_in(statement):
            function = self.settled.handed(call)
            if function is not None and function not in calls:
                return _Inside(function.body, [call], function)
        if self.settled.settles(statement) and not self.settled.repeatable(statement):
            return self._deeper(statement, calls)
        return None

    def _picks(self, statement: ast.stmt, function: FunctionNode) -> ast.Call | None:
        """The call in a statement that may pick a function."""
        return next((call for call in _calls_in(statement) if function in self._picked(call)), None)

    def _deeper(self, statement: ast.stmt, calls: tuple[FunctionNode, ...]) -> _Inside | None:
        """Inside a statement that settles something, and does what the processes must do together, too."""
        settled = self.settled
        if isinstance(statement, (ast.Try, ast.With)):
            before = [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []
            return _Inside(statement.body, before) if any(map(settled.settles, statement.body)) else None
        for call in _calls_in(statement):
            for function in (called.definition for called in self.resolver.functions_called(call)):
                before = given_to(call) + ([call.func.value] if isinstance(call.func, ast.Attribute) else [])
                if function in calls or not settled.repeatable(*before):
                    continue
                if self._is_main(function):
                    return _Inside(function.body, before, function)
                if self._is_passed(statement, call, function):
                    return _Inside(function.body, before, function, [statement])
        return None

    def _is_passed(self, statement: ast.stmt, call: ast.Call, function: FunctionNode) -> bool:
        """Whether the way goes once through a function that settles something, does more, and then comes back."""
        whole = getattr(statement, "value", None)
        is_reached = call is whole or (isinstance(whole, ast.Call) and call in given_to(whole))
        leaving = [n for n in ast.walk(function) if isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom))]
        others = {entry for entry in self.source.entry_trees if entry is not self.source.module(statement)}
        calls = [c for c in self.callers.of(function) if self.source.module(c) not in others]
        goes_through = is_reached and len(calls) == 1 and all(each in function.body for each in leaving)
        return (
            goes_through and bool(self.settled.settles(*function.body)) and not self.settled.repeatable(*function.body)
        )

    def _given(self, statement: ast.stmt, function: FunctionNode) -> list[ast.expr]:
        """The arguments with which a statement calls a function."""
        calls = [c for c in _calls_in(statement) for f in self.resolver.functions_called(c) if f.definition is function]
        return given_to(calls[0])

    def above_constants(self, launch: Launch) -> Launch:
        """The place above the paragraph whose first lines only give names to values; as it is where there is none.

        What is declared on its line (`global device; device = ...`) stays there.
        """
        if launch.statement is None:
            return launch
        block = self.source.block(launch.statement)
        start = block.index(launch.statement)
        if start and isinstance(block[start - 1], _DECLARING) and block[start - 1].lineno == block[start].lineno:
            start -= 1
        launch, first = replace(launch, statement=block[start]), start
        while first and self._is_joined(block[first - 1], block[first]):
            first -= 1
            if not self._names_values(block[first]):
                return launch
        bound = frozenset().union(*map(bound_names, block[first:start]))
        return replace(launch, statement=block[first], visible=launch.visible - bound)

    def _is_joined(self, statement: ast.stmt, following: ast.stmt) -> bool:
        """Whether no blank line is between two statements."""
        start = min([following.lineno, *(each.lineno for each in getattr(following, "decorator_list", ()))])
        return all(line.strip() for line in self.source.lines[statement.end_lineno : start - 1])

    def _names_values(self, statement: ast.stmt) -> bool:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        is_inert = self.effects.inert(statement) and not self.settled.settles(statement)
        return bool(targets) and all(isinstance(target, ast.Name) for target in targets) and is_inert

    def later(self, launch: Launch) -> Iterator[Launch]:
        """The places from `launch` on, in the order in which they run: before each statement, also of `main()` and of
        constructors, where those go on to wrap a model."""
        assert launch.statement is not None
        block = self.source.block(launch.statement)
        return self._places(launch.entry, block[block.index(launch.statement) :], set(launch.visible), ())

    def _places(
        self, entry: ast.Module, block: list[ast.stmt], bound: set[str], calls: tuple[FunctionNode, ...]
    ) -> Iterator[Launch]:
        declared = max((i for i, s in enumerate(block) if isinstance(s, _DECLARING)), default=-1)
        for number, statement in enumerate(block):
            if number > declared and not _is_text(statement):  # a name may not be used ahead of its declaration
                yield Launch(entry, statement, frozenset(bound))
            if is_main_guard(statement):
                assert isinstance(statement, ast.If)
                yield from self._places(entry, statement.body, bound, calls)
            entered = self._entered(statement) or self._constructed(statement)
            if entered is not None and entered not in calls and self._is_main(entered):
                yield from self._places(entry, entered.body, bound | parameters(entered), (*calls, entered))
            bound |= bound_names(statement)

    def _entered(self, statement: ast.stmt) -> FunctionNode | None:
        """The function of this script that a bare call statement, such as `main()`, runs."""
        call = statement.value if isinstance(statement, (ast.Expr, ast.Return)) else None
        if not isinstance(call, ast.Call):
            return None
        if isinstance(call.func, ast.Name) and all(map(self.effects.inert_expression, given_to(call))):
            found = self.resolver.functions_called(call)
            if len(found) == 1 and found[0].owner is None:
                return found[0].definition
        # sys.exit(main())
        if self.names.qualified(call.func) in ("sys.exit", "builtins.exit") and call.args:
            return self._entered(ast.copy_location(ast.Expr(call.args[0]), statement))
        return None

    def _constructed(self, statement: ast.stmt) -> FunctionNode | None:
        """The constructor, or the function, that an assignment such as `trainer = Trainer(args)` runs."""
        call = statement.value if isinstance(statement, (ast.Expr, ast.Return, ast.Assign)) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return None
        found = self.resolver.functions_called(call)
        return found[0].definition if len(found) == 1 else None

    def _is_main(self, function: FunctionNode) -> bool:
        """Whether a function, called once, is where the script goes on to wrap its model."""
        return len(self.callers.of(function)) == 1 and self.effects.leads_to_a_wrap(function)


def _at(entry: ast.Module, step: _Step, apart: Iterable[ast.AST]) -> Launch:
    return Launch(entry, step.statement, step.bound.names(), apart=frozenset(apart))


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a string by itself, as a docstring is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _calls_in(statement: ast.stmt) -> list[ast.Call]:
    """The calls in a simple statement, in the order in which they are made."""
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
        return []
    return sorted(
        (n for n in ast.walk(statement) if isinstance(n, ast.Call)), key=lambda n: (n.end_lineno, n.end_col_offset)
    )


def _once(found: Iterable[Launch]) -> list[Launch]:
    """One place for each statement, also where several commands come to it."""
    places: dict[ast.stmt | None, Launch] = {}
    for launch in found:
        other = places.setdefault(launch.statement, launch)
        places[launch.statement] = replace(launch, apart=launch.apart & other.apart)
    return [*places.values()]
