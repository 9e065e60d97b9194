"""What `torch.compile` has to leave alone, without the compiler being imported for it; whether something is traced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torch._C import _is_tracing
from torch._compile import _disable_dynamo
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """`torch.compiler.disable`, for what each rank calls on its way in.

    Importing the compiler takes more than a second. Where nobody has, nothing is compiled.
    """
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call  # type: ignore[return-value]


def is_traced() -> bool:
    """Whether torch makes a graph of what runs now, in which the ranks' meetings have no place."""
    return _is_tracing() or any(type(mode) is ProxyTorchDispatchMode for mode in _get_current_dispatch_mode_stack())
