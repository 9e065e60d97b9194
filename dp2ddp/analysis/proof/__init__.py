"""The sharding proof: may each rank compute its loss and metrics on its own shard, and where must numbers be reduced?

An abstract interpreter runs over every function that loops over a sharded loader. It follows how each value depends on
the shard (`kinds`). Where such a value leaves what is understood (a print, a call, an attribute, a return), the whole
batch's value is put in its place: a `Reduction`. Where it meets something that can't be undone (an unknown loss, a
branch on a shard's value, random draws), there is no proof, and the script is converted to the gathered strategy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from dp2ddp.analysis.loops import Loops
from dp2ddp.analysis.names import Names
from dp2ddp.analysis.proof.frame import Frame
from dp2ddp.analysis.proof.result import Context, Failure, NoProofError, Proof, Reduction
from dp2ddp.analysis.roles import Resolver
from dp2ddp.analysis.source import Source

__all__ = ["Failure", "Proof", "Reduction", "prove"]


def prove(
    source: Source,
    names: Names,
    resolver: Resolver,
    loops: Loops,
    sites: Iterable[ast.Call],
    *,
    lenient: bool = False,
) -> Proof:
    """Try to prove that sharding the loaders built at `sites` trains and reports the same.

    The proof ends at the first failure; a lenient one skips the statement and goes on, to find all of them.
    """
    wanted = frozenset(sites)
    sharded = {loop.node: loop for loop in loops.data_loops if loop.sites & wanted}
    context = Context(source, names, resolver, loops, sharded, lenient=lenient)
    try:
        for failure in _draws(context, wanted):
            context.fail(failure)
        for root in dict.fromkeys(source.function(node) or source.module(node) for node in sharded):
            Frame(context, root).run()
    except NoProofError as failure:
        return Proof(failures=(Failure(failure.reason, failure.node),))
    return Proof(tuple(context.reductions.values()), tuple(context.failures.values()))


def _draws(context: Context, wanted: frozenset[ast.Call]) -> Iterator[NoProofError]:
    """What isn't a plain loop over a loader with the default collate function."""
    for node in context.loops.irregular:
        if any(context.loops.sites_in(n) & wanted for n in ast.walk(node)):
            yield NoProofError("batches are drawn in another way than by a plain loop over the loader", node)
    for call in context.loops.given_away:
        if any(context.loops.sites_in(n) & wanted for n in ast.walk(call)):
            name = context.source.brief(call.func, 40)
            yield NoProofError(f"a loader is given to `{name}`, which isn't known and may draw from it", call)
    for site in sorted(wanted, key=lambda s: s.lineno):
        for given in site.keywords:
            if given.arg == "collate_fn" and not (isinstance(given.value, ast.Constant) and given.value.value is None):
                yield NoProofError("a custom `collate_fn` may put a shard together differently than the batch", site)
