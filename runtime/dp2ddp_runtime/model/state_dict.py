"""State dictionaries, with or without `module.` in their keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from torch import nn

_PREFIX = "module."


def load_state_dict(model: Any, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """`model.load_state_dict(state)`, whether or not the keys of either begin with `module.`.

    Args:
        model: wrapped or plain; or an optimizer, a scheduler, ..., which gets `state` as it is.
        state, *args, **kwargs: as `nn.Module.load_state_dict` takes them, and what is returned.

    Raises:
        RuntimeError: as there, if `state` doesn't fit in either form.

    See https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict.
    """
    if isinstance(model, nn.Module):
        state = fit_prefix(state, model.state_dict())
    return model.load_state_dict(state, *args, **kwargs)


def fit_prefix(state: Mapping[str, Any], expected: Iterable[str]) -> Mapping[str, Any]:
    """`state`, or a copy with or without `module.` before all keys, whichever has the most of the `expected` keys."""
    wanted = set(expected)
    forms = [state, _renamed(state, lambda key: _PREFIX + key)]
    if all(key.startswith(_PREFIX) for key in state):
        forms.append(_renamed(state, lambda key: key[len(_PREFIX) :]))
    return max(forms, key=lambda form: len(wanted.intersection(form)))


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str]) -> Mapping[str, Any]:
    renamed = OrderedDict((rename(key), value) for key, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        # By module, "" being the model itself: a key with no parameter name after the dot.
        renamed._metadata = {rename(f"{name}." if name else "").rstrip("."): v for name, v in versions.items()}  # type: ignore[attr-defined]
    return renamed
