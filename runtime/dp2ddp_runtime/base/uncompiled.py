"""What `torch.compile` has to leave alone, without the compiler being imported for it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torch._compile import _disable_dynamo

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
