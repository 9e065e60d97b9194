"""Kernels that torch has for CUDA only, where the CPU goes another way: fused cells, dropout, attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MATH = 0  # `SDPBackend.MATH`: attention by plain operations, which are all there is on a pretend device
# Whether cuDNN (or MIOpen) is to compute it.
LOSSES = [f"_use_{library}_ctc_loss{of}" for library in ("cudnn", "miopen") for of in ("", ".Tensor")]


def install() -> Any:
    """Register them for CUDA, until what is returned is gone."""
    library: Any = torch.library.Library("aten", "IMPL", "CUDA")  # type: ignore[no-untyped-call,unused-ignore]
    for name, kernel in {
        "native_dropout": native_dropout,
        "_fused_sdp_choice": lambda *_, **__: MATH,
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_cell_backward,
        **dict.fromkeys(LOSSES, lambda *_, **__: False),
        "record_stream": lambda tensor, stream: None,
    }.items():
        library.impl(name, kernel)
    return library


def native_dropout(tensor: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """As the CPU's `dropout` computes it, but with the mask that CUDA's gives for backward."""
    if train is False:
        return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
    noise = torch.empty_like(tensor).bernoulli_(1 - p)
    mask = noise.bool()
    return tensor * noise.div_(1 - p), mask


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of `nn.LSTM`: the new hidden and cell states, and the gates for backward."""
    gates = _biased(hidden_gates, hidden_bias) + _biased(input_gates, input_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Any, Any, Any]:
    """The gradients of the gates, the cell state and the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    squashed = cy.tanh()
    cell = grad_hy * o * (1 - squashed * squashed)
    if grad_cy is not None:
        cell = cell + grad_cy
    gates = torch.cat(
        [
            cell * g * (1 - i) * i,
            cell * cx * (1 - f) * f,
            cell * i * (1 - g * g),
            grad_hy * squashed * (1 - o) * o,
        ],
        1,
    )
    return gates, cell * f, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of `nn.GRU`: the new hidden state, and what backward needs."""
    input_r, input_z, input_n = _biased(input_gates, input_bias).chunk(3, 1)
    hidden_r, hidden_z, hidden_n = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    r = (hidden_r + input_r).sigmoid()
    z = (hidden_z + input_z).sigmoid()
    n = (input_n + hidden_n * r).tanh()
    return (hx - n) * z + n, torch.cat([r, z, n, hx, hidden_n], 1)


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, Any, Any, Any, Any]:
    """The gradients of both gates, the hidden state and both biases."""
    r, z, n, hx, hidden_n = workspace.chunk(5, 1)
    grad_z = grad_hy * (hx - n) * (1 - z) * z
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * (1 - r) * r
    grad_input = torch.cat([grad_r, grad_z, grad_n], 1)
    grad_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * z, *biases
