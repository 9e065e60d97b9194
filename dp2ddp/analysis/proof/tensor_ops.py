"""What tensor methods and torch functions do to values that depend on the shard.

Only operations that treat each sample alone, or sum or average over all of them, are known here. Anything else is
unknown, and unknown means unprovable.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from dp2ddp.analysis.proof import kinds
from dp2ddp.analysis.proof.kinds import CLEAN, Kind, Unprovable, What
from dp2ddp.analysis.source import keyword

_SAME = frozenset(
    "to cuda cpu float double half bfloat16 long int short bool byte clone contiguous type type_as "
    "requires_grad_ numpy pin_memory tolist".split()
)
_ELEMENTWISE = frozenset(
    "relu relu_ sigmoid tanh exp log sqrt abs neg clamp clamp_ round floor ceil sign square reciprocal eq ne "
    "gt ge lt le equal_ add add_ sub sub_ mul mul_ div div_ pow logical_and logical_or logical_not "
    "masked_fill masked_fill_ expand_as view_as reshape_as where isnan isfinite".split()
)
_ALONG_DIM = frozenset("softmax log_softmax argmax argmin cumsum normalize logsumexp all any norm".split())
_PAIRS_ALONG_DIM = frozenset(["max", "min", "topk", "sort", "kthvalue"])
_NO_GRADIENT = frozenset("eq ne gt ge lt le argmax argmin bool long int detach numpy tolist isnan isfinite".split())
_SCALAR_SAME = frozenset(
    "item detach cpu cuda to float double half clone data numpy mean sum squeeze view reshape long tolist "
    "contiguous detach_ requires_grad_".split()
)
_ROWWISE_FUNCTIONAL = frozenset(
    "relu sigmoid tanh softmax log_softmax one_hot normalize interpolate gelu softplus".split()
)


def method(name: str, value: Kind, call: ast.Call, arguments: list[Kind]) -> Kind:
    """The kind of `value.name(...)`.

    Raises:
        Unprovable: the method isn't known to treat each sample alone.
    """
    if value.what is What.ROWS:
        return _rows_method(name, value, call, call.args, arguments)
    if value.what in (What.MEAN, What.SUM, What.COUNT):
        return _scalar_method(name, value, arguments)
    raise Unprovable(f"`.{name}()` of {value.what.value}")


def function(name: str, call: ast.Call, arguments: list[Kind]) -> Kind:
    """The kind of `torch.name(value, ...)` or `F.name(value, ...)`, whose first argument depends on the shard.

    Raises:
        Unprovable: the function isn't known to treat each sample alone.
    """
    if not arguments or arguments[0].clean:
        if name in _ELEMENTWISE:
            return _combined(CLEAN, arguments)
        raise Unprovable(f"`{name}` mixes samples, or may")
    value = arguments[0]
    if value.what is not What.ROWS:
        return _scalar_method(name, value, arguments[1:])
    if name in ("one_hot", "interpolate", "gelu", "softplus"):
        return kinds.rows(value.over, grad=value.grad, wide=True, dim=value.dim)
    if name == "normalize" and len(call.args) < 3 and keyword(call, "dim") is None:
        return value
    return _rows_method(name, value, call, call.args[1:], arguments[1:])


def knows(name: str) -> bool:
    """Whether a torch function of this name is known here."""
    known = _ELEMENTWISE | _ALONG_DIM | _PAIRS_ALONG_DIM | _ROWWISE_FUNCTIONAL
    return name in known or name in ("sum", "mean", "flatten", "squeeze", "unsqueeze", "numel", "t", "clone", "detach")


def _rows_method(name: str, value: Kind, call: ast.Call, given: list[ast.expr], arguments: list[Kind]) -> Kind:
    if value.container:
        if name in ("to", "cuda"):
            return value
        raise Unprovable(f"`.{name}()` of a whole batch")
    value = replace(value, output=False)
    if name in _NO_GRADIENT:
        value = value.without_grad()
    if name in _SAME or name == "detach":
        return value
    if name in _ELEMENTWISE:
        return _combined(value, arguments)
    if name in ("size", "dim", "numel", "nelement", "stride", "is_floating_point", "get_device"):
        return _measure(name, value, given)
    if name in ("sum", "mean"):
        return _reduced(name, value, call, given)
    if name in _ALONG_DIM:
        _check_other_dim(name, value, call, given, 0)
        keeps = name in ("softmax", "log_softmax", "cumsum", "normalize")
        return value if keeps else replace(value, wide=False)
    if name in _PAIRS_ALONG_DIM:
        _check_other_dim(name, value, call, given, 1 if name in ("topk", "kthvalue") else 0)
        index = value.without_grad()
        wide = name in ("topk", "sort")
        return kinds.group((replace(value, wide=wide), replace(index, wide=wide)))
    return _reshaped(name, value, call, given, arguments)


def _scalar_method(name: str, value: Kind, arguments: list[Kind]) -> Kind:
    if name in ("mul", "mul_", "div", "div_", "add", "add_", "sub", "sub_") and len(arguments) == 1:
        operation = {"m": kinds.multiply, "d": kinds.divide}.get(name[0], kinds.add)
        return operation(value, arguments[0])
    if name in _SCALAR_SAME and all(a.clean for a in arguments):
        return value.without_grad() if name in ("item", "detach", "data", "numpy", "tolist") else value
    raise Unprovable(f"`.{name}()` of {value.what.value}")


def _combined(value: Kind, arguments: list[Kind]) -> Kind:
    for other in arguments:
        value = kinds.elementwise(value, other)
    return value


def _measure(name: str, value: Kind, given: list[ast.expr]) -> Kind:
    if name in ("numel", "nelement"):
        return Kind(What.SUM, value.over)
    if name != "size":
        return CLEAN
    if not given:
        return Kind(What.SHAPE, value.over, dim=value.dim)
    return size_along(value, _constant(given[0]))


def size_along(value: Kind, dim: object) -> Kind:
    """The size of rows along one dimension: the number of samples, or the same on all ranks."""
    if value.dim is None:
        return Kind(What.SUM, value.over)
    if isinstance(dim, int) and dim >= 0:
        return Kind(What.COUNT, value.over) if dim == value.dim else CLEAN
    if dim == -1 and value.wide and value.dim == 0:
        return CLEAN
    raise Unprovable("a size along a dimension that can't be told")


def _reduced(name: str, value: Kind, call: ast.Call, given: list[ast.expr]) -> Kind:
    over_samples = Kind(What.SUM if name == "sum" else What.MEAN, value.over, value.grad)
    dims = keyword(call, "dim") or (given[0] if given else None)
    if dims is None:
        return over_samples
    if value.dim is None:
        if _constant(dims) == 0:
            return over_samples
        raise Unprovable(f"`.{name}()` along a dimension that can't be told")
    listed = [_constant(d) for d in dims.elts] if isinstance(dims, (ast.Tuple, ast.List)) else [_constant(dims)]
    if value.dim in listed:
        return over_samples
    for dim in listed:
        _check_dim(name, value, dim)
    return replace(value, wide=False)


def _check_other_dim(name: str, value: Kind, call: ast.Call, given: list[ast.expr], position: int) -> None:
    """Insist that an operation along a dimension leaves the samples apart."""
    dim = keyword(call, "dim") or keyword(call, "axis")
    if dim is None and position < len(given):
        dim = given[position]
    if dim is None:
        if name in ("topk", "sort") and value.wide:
            return  # the default is the last dimension
        raise Unprovable(f"`{name}` over all samples")
    _check_dim(name, value, _constant(dim))


def _check_dim(name: str, value: Kind, dim: object) -> None:
    if value.dim is None or not isinstance(dim, int):
        raise Unprovable(f"`{name}` along a dimension that can't be told")
    if dim == value.dim or (dim < 0 and not (dim == -1 and value.wide and value.dim == 0)):
        raise Unprovable(f"`{name}` along the samples, or it may be")


def _reshaped(name: str, value: Kind, call: ast.Call, given: list[ast.expr], arguments: list[Kind]) -> Kind:
    first = _constant(given[0]) if given else None
    if name in ("t", "T") and value.dim in (0, 1):
        return replace(value, dim=1 - value.dim)
    if name == "transpose" and [_constant(g) for g in given] in ([0, 1], [1, 0]) and value.dim in (0, 1):
        return replace(value, dim=1 - value.dim)
    if name in ("view", "reshape") and given:
        return _viewed(value, given, arguments)
    if name == "flatten":
        if first == 1 and value.dim == 0:
            return replace(value, wide=True)
        if not given and not call.keywords:
            return replace(value, dim=None, wide=False) if value.wide or value.dim != 0 else value
    if name == "squeeze":
        return replace(value, wide=False)
    if name == "unsqueeze" and value.dim == 0 and isinstance(first, int) and first >= 1:
        return replace(value, wide=True)
    if name == "unsqueeze" and value.dim == 0 and first == -1:
        return replace(value, wide=True)
    if name in ("gather", "index_select") and isinstance(first, int) and value.dim == 0 and first >= 1:
        return value
    if (
        name == "expand"
        and value.dim == 0
        and given
        and (first == -1 or (arguments and arguments[0].what is What.COUNT))
    ):
        return value
    raise Unprovable(f"`.{name}()` is not known to treat each sample alone")


def _viewed(value: Kind, given: list[ast.expr], arguments: list[Kind]) -> Kind:
    first = _constant(given[0])
    if len(given) == 1 and first == -1:
        return replace(value, dim=None) if value.wide or value.dim != 0 else value
    if arguments[0].what is What.COUNT or (first == -1 and value.dim == 0):
        return replace(value, dim=0, wide=True)
    if first == 1 and len(given) == 2 and _constant(given[1]) == -1 and not value.wide:
        return replace(value, dim=1)
    raise Unprovable("a view with a fixed number of samples")


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
