"""The table of what is done to rows: bit for bit the rows of what is done to the whole batch."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.base.nesting import chunk_sizes
from dp2ddp_runtime.batches import deferred, rowwise
from dp2ddp_runtime.batches.deferred import Deferred
from torch.nn import functional as F  # noqa: N812

Case = Callable[..., Any]
SHAPE = (7, 3, 5, 67)  # odd everywhere, so that rows begin and end within vector registers
UNARY = """
    neg negative abs absolute sign square sqrt floor ceil round trunc frac relu isnan isinf isfinite logical_not
""".split()
BINARY = """
    add sub subtract rsub mul multiply div divide true_divide floor_divide maximum minimum eq ne lt le gt ge not_equal
    less less_equal greater greater_equal logical_and logical_or logical_xor
""".split()
REFLECTED = "__radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__".split()
OPERATORS = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __sub__ __mul__ __truediv__ __floordiv__".split()
BITS = "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__".split()

EXACT: dict[str, Case] = {
    **{name: (lambda x, name=name: getattr(torch, name)(x)) for name in UNARY},
    **{
        name: (lambda x, name=name: getattr(torch, name)(x, 0.7))
        for name in BINARY
        if name not in ("maximum", "minimum", "logical_and", "logical_or", "logical_xor")
    },
    **{f"{name} of two": (lambda x, name=name: getattr(torch, name)(x, x.flip(3))) for name in BINARY},
    **{f"{name} of a part": (lambda x, name=name: getattr(torch, name)(x, torch.rand(3, 1, 1))) for name in BINARY},
    **{f"{name} of a whole": (lambda x, name=name: getattr(torch, name)(x, WHOLE)) for name in BINARY},
    **{f"{name} of rows": (lambda x, name=name: getattr(torch, name)(x, WHOLE[:, :1, :1, :1])) for name in BINARY},
    **{name: (lambda x, name=name: getattr(x, name)(2.5)) for name in REFLECTED if hasattr(torch.Tensor, name)},
    **{name: (lambda x, name=name: getattr((x * 9).long(), name)((x * 5).long())) for name in BITS},
    # As Python calls them, by torch's own name or by another, from version to version.
    **{
        name: (lambda x, name=name: [getattr(operator, name)(x, 0.5), getattr(operator, name)(x, x.flip(2))])
        for name in OPERATORS
    },
    "__neg__ __abs__": lambda x: abs(-x),
    "__invert__ bitwise_not": lambda x: torch.bitwise_not(~(x > 0.5)),
    "__rdiv__": lambda x: 3 / x,
    "behind": lambda x: WHOLE - x,
    "outer": lambda x: torch.rand(2, 1, 1, 1, 1) + x,
    "clamp": lambda x: x.clamp(0.1, 0.8).clamp_min(0.2).clamp_max(0.7).clip(0.3),
    "clamp_min": lambda x: torch.clamp_min(x, 0.5),
    "clamp_max": lambda x: torch.clamp_max(x, 0.5),
    "clip": lambda x: torch.clip(x, min=torch.rand(67)),
    "where": lambda x: torch.where(x > 0.5, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 2.0),
    "normalised": lambda x: (x - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / torch.rand(3).view(3, 1, 1),
    "in place": lambda x: x.clone().mul_(2).add_(1).div_(3).sub_(torch.rand(3, 1, 1)).neg_().abs_().sqrt_().relu_(),
    "clamped in place": lambda x: x.clone().clamp_(0.2, 0.7).clamp_min_(0.3).clamp_max_(0.6),
    "filled in place": lambda x: x.clone().masked_fill_(WHOLE > 0.5, 0),
    "subtract in place": lambda x: (x.clone() - 1).sub_(WHOLE),
    "set": lambda x: _set(x.clone(), 0.5),
    "set rows": lambda x: _set(x.clone(), (x * 2)[:, :, 1:3]),
    "casts": lambda x: [
        getattr(x, name)() for name in "float double half bfloat16 int long short char byte bool".split()
    ],
    "moves": lambda x: [
        x.to("cpu"),
        x.to(torch.float64),
        x.cpu(),
        x.clone(),
        x.contiguous(),
        x.type(torch.DoubleTensor),
    ],
    "to another's": lambda x: [x.to(x.double()), x.type_as(x.half()), x.to(WHOLE)],
    "detached": lambda x: [x.detach(), x.data],
    "view": lambda x: [x.view(7, -1), x.view(7, 15, 67), x.view(-1, 3, 335), x.reshape(7, 3, 335), x.flatten(1)],
    "rows of rows": lambda x: [x.view(-1, 67), x.view(-1), x.flatten(0, 1) * 2, x.transpose(0, 1).flatten(1, 2)],
    "rows again": lambda x: [x.view(-1, 5, 67).relu().view(7, 3, -1), x.view(-1).view(7, 1005), x.view(1, 105, 67)],
    "flatten": lambda x: [x.flatten(2), torch.flatten(x, 1, 2), torch.flatten(x, start_dim=1), x.unflatten(3, (67, 1))],
    "moved": lambda x: [
        x.permute(0, 2, 3, 1),
        x.permute(1, 0, 2, 3),
        x.transpose(0, 1),
        x.transpose(-1, 1),
        x.movedim(0, 2),
    ],
    "moved further": lambda x: x.transpose(0, 1).unsqueeze(0).flatten(3).permute(2, 0, 1, 3).view(7, 3, -1),
    "squeezed": lambda x: [
        x.unsqueeze(0),
        x.unsqueeze(-1),
        x[:, :1].squeeze(1),
        x.unsqueeze(2).squeeze(2),
        x[:, 0, 0].t(),
        x[:, :1, :1].squeeze(),
    ],
    "items": lambda x: [x[:, 0], x[:, :, 1:3], x[..., 0], x[:, None], x[0:, 1], x[:, -1, :, ::2], x[:], x[None]],
    "expanded": lambda x: [x[:, :1].expand(-1, 3, -1, -1), x.repeat(1, 2, 1, 1), x.repeat(2, 1, 1, 1, 1)],
    "pieces": lambda x: [*x.chunk(2, 1), *x.split(2, dim=2), *x.unbind(1), *torch.split(x, [1, 2], 1)],
    "joined": lambda x: [
        torch.cat([x, x * 2], 1),
        torch.stack([x, x]),
        torch.stack([x, x], dim=1),
        torch.cat((x, WHOLE), dim=-1),
    ],
    "pad": lambda x: [F.pad(x, (1, 2)), F.pad(x, (1, 1, 2, 2), mode="reflect"), F.pad(x, (0, 1), value=3.0)],
    "flip": lambda x: [x.flip(3), torch.flip(x, (1, 2))],
    "interpolate": lambda x: [
        F.interpolate(x, scale_factor=2.0),
        F.interpolate(x, (9, 40), mode="bilinear", align_corners=False),
        F.interpolate(x, size=(3, 31), mode="area"),
        F.interpolate(x, size=(8, 70), mode="bicubic"),
    ],
}
ROUNDED: dict[str, Case] = {
    **{
        name: (lambda x, name=name: getattr(torch, name)(x))
        for name in "exp expm1 log log1p log2 log10 sigmoid tanh sin cos erf rsqrt reciprocal logit".split()
    },
    **{
        name: (lambda x, name=name: getattr(F, name)(x))
        for name in "logsigmoid softplus leaky_relu elu selu gelu silu hardtanh relu6".split()
    },
    "pow __rpow__": lambda x: [x**2, x.pow(3), 2**x],
    "along": lambda x: [
        x.softmax(1),
        F.log_softmax(x, dim=1),
        x.argmax(1),
        x.argmin(dim=-1),
        x.amax(1),
        x.amin(2),
        *x.max(1),
        *torch.min(x, dim=1),
        x.sum(1),
        x.mean(dim=3, keepdim=True),
        x.cumsum(2),
    ],
}
LIKE: dict[str, Case] = {
    "like": lambda x: [
        torch.zeros_like(x),
        torch.ones_like(x, dtype=torch.long),
        torch.full_like(x, 3),
        x.new_zeros(2, 3),
        x.new_ones(1),
    ],
    "drawn": lambda x: [torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9)],
    "new": lambda x: [x.new_tensor([1.0]), x.new_full((2,), 3), torch.empty_like(x).shape == x.shape, x.new(2).shape],
}
WHOLE = torch.rand(SHAPE, generator=torch.Generator().manual_seed(9))


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is small enough to travel along, and the tests after these are a single process again."""
    monkeypatch.setattr(deferred, "SMALL", 0)
    yield
    world.enter(world.World())


def _set(x: Any, value: Any) -> Any:
    x[:, :, 2:4] = value
    x[:, 0, 0] = 7
    return x


def each_ranks(size: int, case: Case, whole: torch.Tensor, allows_reordered_sum: bool = False) -> list[list[Any]]:
    """What each rank makes of its rows, without any other rank: a look would fail."""
    results = []
    sizes = chunk_sizes(len(whole), size)
    for rank in range(size):
        world.enter(world.World(rank=rank, world_size=size))
        start = sum(sizes[:rank])
        rows = whole[start : start + sizes[rank]] if sizes[rank] else whole[: sizes[0]]
        torch.manual_seed(1)
        found = case(deferred.defer(rows.clone(), sizes, allows_reordered_sum=allows_reordered_sum))
        results.append(found if isinstance(found, list) else [found])
    return results


def together(parts: tuple[Any, ...]) -> torch.Tensor:
    assert all(isinstance(part, Deferred) and part.is_rows for part in parts)
    whole = torch.cat([part.rows for rank, part in enumerate(parts) if part.sizes[rank]], parts[0].batch_dim)
    assert all(part.shape == whole.shape and part.dtype == whole.dtype for part in parts)
    return whole


def compared(case: Case, whole: torch.Tensor, allows_reordered_sum: bool = False) -> Iterator[tuple[Any, Any]]:
    """What the ranks make of their rows together, and what one process makes of the whole batch."""
    for size in (2, 3, 4):
        torch.manual_seed(1)
        expected = case(whole.clone())
        expected = expected if isinstance(expected, list) else [expected]
        columns = list(zip(*each_ranks(size, case, whole, allows_reordered_sum)))
        assert len(columns) == len(expected)
        yield from ((together(column), wanted) for column, wanted in zip(columns, expected))


@pytest.mark.parametrize("name", EXACT)
def test_rows_are_bit_for_bit_the_whole_batchs(name: str) -> None:
    for got, wanted in compared(EXACT[name], torch.rand(SHAPE, generator=torch.Generator().manual_seed(3))):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("name", ROUNDED)
def test_outputs_rows_are_the_whole_ones_to_rounding(name: str) -> None:
    whole = torch.rand(SHAPE, generator=torch.Generator().manual_seed(3)).clamp(0.01, 0.99)
    for got, wanted in compared(ROUNDED[name], whole, allows_reordered_sum=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LIKE)
def test_what_is_new_is_made_whole(name: str) -> None:
    whole = torch.rand(SHAPE)
    torch.manual_seed(1)
    expected = LIKE[name](whole)
    for results in each_ranks(2, LIKE[name], whole):
        for got, wanted in zip(results, expected):
            assert not isinstance(got, Deferred)
            assert torch.equal(got, wanted) if isinstance(wanted, torch.Tensor) else got == wanted


LOOKS: dict[str, Case] = {
    "exp of an input": torch.exp,
    "sum of an input": lambda x: x.sum(1),
    "the batch's dimension": lambda x: x.sum(0),
    "a slice of rows": lambda x: x[1:3],
    "reversed": lambda x: x.flip(0),
    "views across rows": lambda x: x.view(3, -1),
    "shifted": lambda x: x.roll(1, 0),
    "a learned scale": lambda x: x * torch.ones(3, 1, 1, requires_grad=True),
    "another alignment": lambda x: x[:, :, :, :7] + x.permute(1, 2, 3, 0)[:, :, :1],
    "chunks of rows": lambda x: x.chunk(2),
    "one_hot": lambda x: F.one_hot((x * 3).long(), 4),
    "joined rows": lambda x: torch.cat([x, x]),
    "dropout": lambda x: F.dropout(x, 0.5),
    "with alpha": lambda x: torch.add(x, x, alpha=0.3),
    "into a given tensor": lambda x: torch.add(x, 1, out=torch.empty(SHAPE)),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_needs_the_others_looks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These would be wrong on rows: the whole batch is asked for."""
    looked: list[Deferred] = []

    def look(self: Deferred) -> None:
        looked.append(self)
        raise InterruptedError

    monkeypatch.setattr(Deferred, "materialize", look)
    with pytest.raises(InterruptedError):
        each_ranks(2, LOOKS[name], torch.rand(SHAPE))
    assert looked


@pytest.mark.parametrize(
    "look", [lambda x: x.norm(1, 0), lambda x: x.norm(2), lambda x: x.mul_(2), lambda x: x.softmax(0)]
)
def test_outputs_are_looked_at_for_what_mixes_rows(look: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def materialize(self: Deferred) -> None:
        raise InterruptedError

    monkeypatch.setattr(Deferred, "materialize", materialize)
    with pytest.raises(InterruptedError):
        each_ranks(2, look, torch.rand(SHAPE), allows_reordered_sum=True)


def test_each_entry_of_the_table_has_a_case() -> None:
    tested = " ".join([*EXACT, *ROUNDED, *LIKE]) + " where masked_fill full_like empty_like zeros_like new_empty"
    names = [*rowwise._EXACT, *rowwise._ROUNDED]
    missing = [
        name for name in names if name not in tested and name.strip("_") not in tested and hasattr(torch.Tensor, name)
    ]
    assert missing == []


def test_a_stream_is_noted_for_the_rows() -> None:
    """Of a loader that reads ahead: the rows' memory must last, and nothing is gathered for it."""
    noted: list[Any] = []
    rows = torch.rand(3, 2)
    batch = deferred.defer(rows, [3, 3])
    rowwise.RULES[torch.Tensor.record_stream](lambda *given: noted.append(given), (batch, "a stream"), {})
    ((found, stream),) = noted
    assert (found is rows, stream, batch.is_materialized) == (True, "a stream", False)
