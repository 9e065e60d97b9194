"""The list of what is done to rows: bit for bit the rows of what is done to the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
from deferring import chunks, is_rows
from dp2ddp_runtime import large, rows
from dp2ddp_runtime.gradients import Layout
from dp2ddp_runtime.rows import Rows, cut
from dp2ddp_runtime.world import world
from torch.nn import functional as F  # noqa: N812

Case = Callable[..., Any]
SHAPE = (7, 3, 5, 67)  # odd everywhere, so that rows begin and end within vector registers
WHOLE = torch.rand(SHAPE, generator=torch.Generator().manual_seed(9))
UNARY = "neg abs sqrt".split()
BINARY = "add sub rsub mul div true_divide eq ne lt le gt ge".split()
REFLECTED = "__radd__ __rsub__ __rmul__ __rtruediv__ __rdiv__".split()

EXACT: dict[str, Case] = {
    **{name: (lambda x, name=name: getattr(torch, name)(x)) for name in UNARY},
    **{name: (lambda x, name=name: getattr(torch, name)(x, 0.7)) for name in BINARY},
    **{f"{name} of two": (lambda x, name=name: getattr(torch, name)(x, x + 1)) for name in BINARY},
    **{f"{name} of a part": (lambda x, name=name: getattr(torch, name)(x, torch.rand(3, 1, 1))) for name in BINARY},
    **{f"{name} of a whole": (lambda x, name=name: getattr(torch, name)(x, WHOLE)) for name in BINARY},
    **{f"{name} of rows": (lambda x, name=name: getattr(torch, name)(x, WHOLE[:, :1, :1, :1])) for name in BINARY},
    **{name: (lambda x, name=name: getattr(x, name)(2.5)) for name in REFLECTED if hasattr(torch.Tensor, name)},
    "__add__ __sub__ __mul__ __truediv__ __neg__": lambda x: [x + 1, x - 1, x * 2, x / 3, -x, 1 - x, 3 / x],
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__": lambda x: [x == 0.5, x != 0.5, x < 0.5, x <= 0.5, x > 0.5, x >= x],
    "__and__ __or__ __invert__": lambda x: [(x > 0.3) & (x < 0.6), (x < 0.3) | (x > 0.6), ~(x > 0.5)],
    "logical_and logical_or logical_not": lambda x: [
        torch.logical_and(x > 0.3, x < 0.6), torch.logical_or(x > 0.3, x < 0.6), torch.logical_not(x > 0.5)
    ],
    "clamp clip": lambda x: [x.clamp(0.1, 0.8), torch.clamp(x, min=0.2), x.clip(0.3)],
    "where masked_fill": lambda x: [torch.where(x > 0.5, x, 0.0), x.masked_fill(x > 0.5, 2.0)],
    "normalised": lambda x: (x - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / torch.rand(3).view(3, 1, 1),
    "casts": lambda x: [getattr(x, name)() for name in "float double half bfloat16 int long short bool".split()],
    "to cpu contiguous type": lambda x: [
        x.to("cpu"), x.to(torch.float64), x.cpu(), x.contiguous(), x.type(torch.DoubleTensor)
    ],
    "type_as": lambda x: [x.to(x.double()), x.type_as(x.half()), x.to(WHOLE)],
    "detach data": lambda x: [x.detach(), x.data],
    "view reshape": lambda x: [x.view(7, -1), x.view(7, 15, 67), x.view(-1, 3, 335), x.reshape(x.size(0), 3, 335)],
    "rows of rows": lambda x: [x.view(-1, 67), x.view(-1), x.flatten(0, 1) * 2],
    "rows again": lambda x: [(x.view(-1, 5, 67) * 2).view(7, 3, -1), x.view(-1).view(7, 1005)],
    "flatten unflatten": lambda x: [
        x.flatten(2), torch.flatten(x, 1, 2), torch.flatten(x, start_dim=1), x.unflatten(3, (67, 1))
    ],
    "permute transpose movedim": lambda x: [x.permute(0, 2, 3, 1), x.transpose(-1, 1), x.movedim(1, 3)],
    "squeeze unsqueeze": lambda x: [
        x.unsqueeze(-1), x[:, :1].squeeze(1), x.unsqueeze(2).squeeze(2), x[:, :1, :1].squeeze()
    ],
    "__getitem__": lambda x: [x[:, 0], x[:, :, 1:3], x[..., 0], x[:, None], x[0:, 1], x[:, -1, :, ::2], x[:]],
    "select narrow": lambda x: [x.select(1, 2), x.narrow(2, 1, 3)],
    "expand repeat": lambda x: [x[:, :1].expand(-1, 3, -1, -1), x.repeat(1, 2, 1, 1)],
    "chunk split unbind": lambda x: [*x.chunk(2, 1), *x.split(2, dim=2), *x.unbind(1), *torch.split(x, [1, 2], 1)],
    "cat stack": lambda x: [torch.cat([x, x * 2], 1), torch.stack([x, x], dim=1), torch.cat((x, WHOLE), dim=-1)],
    "pad": lambda x: [F.pad(x, (1, 2)), F.pad(x, (1, 1, 2, 2), mode="reflect"), F.pad(x, (0, 1), value=3.0)],
    "interpolate": lambda x: [
        F.interpolate(x, scale_factor=2.0), F.interpolate(x, (9, 40), mode="bilinear", align_corners=False)
    ],
}  # fmt: skip
ROUNDED: dict[str, Case] = {
    "sigmoid": torch.sigmoid,
    "along": lambda x: [
        x.softmax(1), F.log_softmax(x, dim=1), x.argmax(1), x.argmin(dim=-1), x.amax(1), x.amin(2), *x.max(1),
        *torch.min(x, dim=1), x.sum(1), x.mean(dim=3, keepdim=True), x.mean((2, 3)),
    ],
}  # fmt: skip
LIKE: dict[str, Case] = {
    "zeros_like ones_like full_like new_zeros new_ones": lambda x: [
        torch.zeros_like(x), torch.ones_like(x, dtype=torch.long), torch.full_like(x, 3), x.new_zeros(2, 3),
        x.new_ones(1),
    ],
    "rand_like randn_like randint_like": lambda x: [torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9)],
    "new_tensor new_full empty_like new new_empty": lambda x: [
        x.new_tensor([1.0]), x.new_full((2,), 3), torch.empty_like(x).shape == x.shape, x.new(2).shape,
        x.new_empty(3).shape,
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def ranks_of_one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is small enough to travel along, and the tests after these are a single process again."""
    monkeypatch.setattr(rows, "SMALL", -1)
    yield
    world.rank, world.size = 0, 1


def each_ranks(size: int, case: Case, whole: torch.Tensor, is_output: bool = False) -> list[list[Any]]:
    """What each rank makes of its rows, without any other rank: a look would fail."""
    results = []
    sizes = tuple(chunks(len(whole), size))
    for rank in range(size):
        world.rank, world.size = rank, size
        own = cut(whole, sizes).clone()
        torch.manual_seed(1)
        found = case(large.output(own, Layout(sizes, 0), []) if is_output else Rows(own, sizes))
        results.append(found if isinstance(found, list) else [found])
    return results


def together(parts: tuple[Any, ...]) -> torch.Tensor:
    assert all(is_rows(part) for part in parts)
    whole = torch.cat([part._rows for rank, part in enumerate(parts) if part._sizes[rank]])
    assert all(part.shape == whole.shape and part.dtype == whole.dtype for part in parts)
    return whole


def compared(case: Case, whole: torch.Tensor, is_output: bool = False) -> Iterator[tuple[Any, Any]]:
    """What the ranks make of their rows together, and what one process makes of the whole batch."""
    for size in (2, 5):
        torch.manual_seed(1)
        expected = case(whole.clone())
        expected = expected if isinstance(expected, list) else [expected]
        columns = list(zip(*each_ranks(size, case, whole, is_output)))
        assert len(columns) == len(expected)
        yield from ((together(column), wanted) for column, wanted in zip(columns, expected))


@pytest.mark.parametrize("is_output", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_rows_are_bit_for_bit_the_whole_batchs(name: str, is_output: bool) -> None:
    whole = torch.rand(SHAPE, generator=torch.Generator().manual_seed(3))
    for got, wanted in compared(EXACT[name], whole, is_output):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("name", ROUNDED)
def test_outputs_rows_are_the_whole_ones_to_rounding(name: str) -> None:
    whole = torch.rand(SHAPE, generator=torch.Generator().manual_seed(3)).clamp(0.01, 0.99)
    for got, wanted in compared(ROUNDED[name], whole, is_output=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LIKE)
def test_what_is_new_is_made_whole(name: str) -> None:
    whole = torch.rand(SHAPE)
    torch.manual_seed(1)
    expected = LIKE[name](whole)
    for results in each_ranks(2, LIKE[name], whole):
        for got, wanted in zip(results, expected):
            assert not isinstance(got, Rows)
            assert torch.equal(got, wanted) if isinstance(wanted, torch.Tensor) else got == wanted


@pytest.mark.parametrize("total", [1, 2, 3, 4])
def test_numbers_of_rows_that_equal_other_sizes(total: int) -> None:
    """Batches as large as another of their dimensions: what is kept apart is right, what isn't is asked for."""
    wrongs = []
    cases: dict[str, Case] = {
        "t": lambda x: x.transpose(0, 1), "view": lambda x: x.view(3, -1), "add": lambda x: x + x[:, 0],
        "outer": lambda x: x[:, :1] + x[:, 0], "expand": lambda x: x[:, :1].expand(-1, total),
        "self": lambda x: x + x.t(),
        "first": lambda x: x[:2], "last": lambda x: x[-2:], "vector": lambda x: x + torch.arange(3.0),
        "squeeze": lambda x: x[:, :1].squeeze(), "narrow": lambda x: x.narrow(0, 0, 1),
        "stack": lambda x: torch.stack([x, x]),
        "split": lambda x: x.split(2), "chunk": lambda x: x.chunk(1), "unbind": lambda x: x.unbind(),
    }  # fmt: skip
    whole = torch.rand(total, 3)
    for name, case in cases.items():
        try:
            expected = case(whole)
            parts = list(zip(*each_ranks(2, case, whole)))
        except RuntimeError:  # a look, or the script's own error
            continue
        several = isinstance(expected, tuple)
        columns = list(zip(*(part for (part,) in zip(*parts)))) if several else parts
        for column, wanted in zip(columns, expected if several else [expected]):
            wrongs += [] if torch.equal(together(column), wanted) else [name]
    assert wrongs == []


def test_each_entry_of_the_list_has_a_case() -> None:
    tested = " ".join([*EXACT, *ROUNDED, *LIKE]).split() + "cuda pin_memory is_pinned record_stream".split()
    tested += "float double half bfloat16 long int short bool".split()
    names = [*rows.MOVES, *rows.VIEWS, *rows.RESHAPES, *rows.COMPARISONS, *rows.EACH, *rows.LIKE]
    assert [name for name in names if name not in tested and hasattr(torch.Tensor, name)] == []
