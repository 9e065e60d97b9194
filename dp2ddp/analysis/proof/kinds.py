"""How a value depends on the shard that this rank holds: the lattice of the sharding proof.

In a sharded loop every rank sees its own shard of the batch. A value is *clean* when it is the same on all ranks. A
value that isn't can still be known well enough to compute the whole batch's: the rows of the shards concatenate, the
sums add up, the means average with the shards' sizes as weights. Whatever fits none of these can't be proved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class What(Enum):
    """The kinds of dependence on the shard."""

    CLEAN = "the same on all ranks"
    ZERO = "zero on all ranks"
    ROWS = "one entry for each sample of the shard"
    MEAN = "a mean over the samples of the shard"
    SUM = "a sum over the samples of the shard"
    COUNT = "the number of samples of the shard"
    INVERSE = "a constant divided by the number of samples"
    SHAPE = "the shape of a tensor of rows"
    GROUP = "a tuple of several kinds"
    LIST = "a list of values of one kind"
    METER = "an object that keeps a sum and a count"
    MIXED = "sometimes one thing and sometimes another"


@dataclass(frozen=True)
class Kind:
    """How one value depends on the shard.

    Attributes:
        what: the kind.
        over: the loader whose shards it comes from, as the script writes it; empty for clean values.
        grad: whether a gradient flows through it.
        dim: for rows, the position of the sample dimension; None once flattened with others.
        wide: for rows, whether there is a dimension besides the samples' for sure.
        output: whether it is what a model returned, which can be a tensor or a tuple.
        container: whether it is a whole batch, which can be a tensor, a tuple or a dictionary.
        parts: for a group, its elements; for a list, at most one, its elements' kind.
    """

    what: What
    over: str = ""
    grad: bool = False
    dim: int | None = 0
    wide: bool = False
    output: bool = False
    container: bool = False
    parts: tuple[Kind, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether the value is the same on all ranks."""
        return self.what in (What.CLEAN, What.ZERO)

    @property
    def adds_up(self) -> bool:
        """Whether the sum over ranks is the whole batch's value."""
        return self.what in (What.SUM, What.COUNT)

    def without_grad(self) -> Kind:
        """The same value, detached."""
        return replace(self, grad=False) if self.grad else self


CLEAN = Kind(What.CLEAN)
ZERO = Kind(What.ZERO)
MIXED = Kind(What.MIXED)  # fine as long as nobody reads it


class Unprovable(Exception):  # noqa: N818 - an outcome of the proof, not an error
    """The values don't combine into anything that the whole batch's value can be computed from."""


def rows(over: str, *, grad: bool = False, wide: bool = False, dim: int | None = 0) -> Kind:
    """One entry for each sample of the shard."""
    return Kind(What.ROWS, over, grad, dim, wide)


def scalar(what: What, like: Kind) -> Kind:
    """A scalar computed from `like`."""
    return Kind(what, like.over, like.grad)


def group(parts: tuple[Kind, ...]) -> Kind:
    """A tuple; clean when all its elements are."""
    return CLEAN if all(p.clean for p in parts) else Kind(What.GROUP, parts=parts)


def join(a: Kind | None, b: Kind | None) -> Kind:
    """What is known of a value that is one of two. None: never assigned.

    A value that is mixed may be overwritten unread, so it fails the proof only where it is read.
    """
    if a is None or b is None:
        found = a or b
        return CLEAN if found is None else found
    if a == b:
        return a
    if a.clean and b.clean:
        return CLEAN
    if (a.what is What.ZERO and b.adds_up) or (b.what is What.ZERO and a.adds_up):
        return Kind(What.SUM, a.over or b.over)
    if a.what is b.what and a.what in (What.METER, What.LIST) and not (a.over and b.over):
        return a if a.over else b  # the other one is still empty
    if What.METER in (a.what, b.what) and not (a.over or b.over) and (a.clean or b.clean):
        return CLEAN  # in one case somebody else gets to see the meter
    if a.what is b.what and a.over == b.over:
        return _merged(a, b)
    if a.adds_up and b.adds_up and a.over == b.over:
        return Kind(What.SUM, a.over, a.grad or b.grad)
    return MIXED


def _merged(a: Kind, b: Kind) -> Kind:
    if a.what in (What.GROUP, What.LIST):
        if len(a.parts) == len(b.parts):
            return replace(a, parts=tuple(join(x, y) for x, y in zip(a.parts, b.parts)))
        if a.what is What.LIST and not (a.parts and b.parts):
            return replace(a, parts=a.parts or b.parts)
        return MIXED
    if a.what is What.ROWS and a.dim != b.dim:
        return MIXED
    return replace(
        a,
        grad=a.grad or b.grad,
        wide=a.wide and b.wide,
        output=a.output and b.output,
        container=a.container or b.container,
    )


def add(a: Kind, b: Kind) -> Kind:
    """`a + b` and `a - b`."""
    if a.clean and b.clean:
        return CLEAN if ZERO not in (a, b) or a == b else (b if a == ZERO else a)
    if What.ROWS in (a.what, b.what):
        return elementwise(a, b)
    over = _over(a, b)
    grad = a.grad or b.grad
    if a.what is What.ZERO or b.what is What.ZERO:
        return b if a.what is What.ZERO else a
    if a.adds_up and b.adds_up:
        return Kind(What.SUM, over, grad)
    # A constant may be added to a mean: the weights of the shards add up to one.
    if {a.what, b.what} <= {What.MEAN, What.CLEAN}:
        return Kind(What.MEAN, over, grad)
    raise Unprovable(f"{a.what.value} is added to {b.what.value}")


def multiply(a: Kind, b: Kind) -> Kind:
    """`a * b`."""
    if a.clean and b.clean:
        return CLEAN
    if What.ROWS in (a.what, b.what):
        return elementwise(a, b)
    over, grad = _over(a, b), a.grad or b.grad
    if a.clean or b.clean:
        kept = b if a.clean else a
        return Kind(What.SUM if kept.adds_up else kept.what, over, grad)
    whats = {a.what, b.what}
    if whats == {What.MEAN, What.COUNT}:
        return Kind(What.SUM, over, grad)
    if What.INVERSE in whats and (a.adds_up or b.adds_up):
        return Kind(What.MEAN, over, grad)
    raise Unprovable(f"{a.what.value} is multiplied with {b.what.value}")


def divide(a: Kind, b: Kind) -> Kind:
    """`a / b`."""
    if a.clean and b.clean:
        return CLEAN
    if What.ROWS in (a.what, b.what):
        return elementwise(a, b)
    over, grad = _over(a, b), a.grad or b.grad
    if b.clean:
        return Kind(What.SUM if a.adds_up else a.what, over, grad)
    if b.what is What.COUNT and a.clean:
        return Kind(What.INVERSE, over)
    if b.what is What.COUNT and a.adds_up:
        return Kind(What.MEAN, over, grad)
    raise Unprovable(f"{a.what.value} is divided by {b.what.value}")


def elementwise(a: Kind, b: Kind) -> Kind:
    """An operation between rows, or rows and a clean value, that treats each entry alone."""
    if a.clean or b.clean:
        kept = b if a.clean else a
        return replace(kept, output=False)
    if a.what is What.ROWS and b.what is What.ROWS:
        if a.dim != b.dim or a.container or b.container:
            raise Unprovable("the samples lie along different dimensions")
        return rows(_over(a, b), grad=a.grad or b.grad, wide=a.wide or b.wide, dim=a.dim)
    raise Unprovable(f"{a.what.value} is combined with {b.what.value}")


def _over(a: Kind, b: Kind) -> str:
    overs = {k.over for k in (a, b) if not k.clean}
    if len(overs) > 1:
        raise Unprovable("values of two loaders are combined")
    return overs.pop() if overs else ""
