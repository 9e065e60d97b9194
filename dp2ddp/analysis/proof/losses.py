"""Which losses are means over samples: for those, the mean of the shards is the mean of the batch."""

from __future__ import annotations

import ast

# torch.nn's losses whose `reduction="mean"` divides by the number of elements, of which each sample has equally many.
# The reference: https://pytorch.org/docs/stable/nn.html#loss-functions
_MEANS = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
    "PoissonNLLLoss": "poisson_nll_loss",
    "GaussianNLLLoss": "gaussian_nll_loss",
    "SoftMarginLoss": "soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss",
}
_CLASSES = {f"torch.nn.{name}": name for name in _MEANS}
_FUNCTIONS = {f"torch.nn.functional.{function}": name for name, function in _MEANS.items()}
# Arguments that change no weights: a mean stays a mean over samples whatever they are.
_HARMLESS = frozenset({"label_smoothing", "beta", "delta", "log_target", "log_input", "full", "eps", "margin", "p"})


def is_loss_function(path: str) -> bool:
    """Whether a dotted path is a functional loss that can be a mean."""
    return path in _FUNCTIONS


def why_no_mean(path: str, call: ast.Call) -> str | None:
    """Why a loss is not a plain mean over samples; None where it is one.

    `call` builds the loss (`nn.CrossEntropyLoss(...)`) or computes it (`F.cross_entropy(output, target, ...)`).
    """
    short = path.rsplit(".", 1)[-1]
    if path in _FUNCTIONS:
        extra = call.args[2:] if short != "gaussian_nll_loss" else call.args[3:]
    elif path in _CLASSES:
        extra = call.args
    else:
        return f"`{short}` is not known as a mean over samples"
    if extra or any(k.arg is None for k in call.keywords):
        return f"`{short}` has arguments that may weight the samples"
    for given in call.keywords:
        reason = _why_not(short, given)
        if reason is not None:
            return reason
    return None


def _why_not(short: str, given: ast.keyword) -> str | None:
    if given.arg == "reduction":
        allowed = ("mean", "batchmean") if short in ("KLDivLoss", "kl_div") else ("mean",)
        if isinstance(given.value, ast.Constant) and given.value.value in allowed:
            return None
        return f"`{short}` has a reduction that is not the mean"
    if given.arg in _HARMLESS or given.arg in ("input", "target"):
        return None
    if given.arg in ("weight", "pos_weight"):
        if isinstance(given.value, ast.Constant) and given.value.value is None:
            return None
        return f"`{short}` weights its classes"
    if given.arg == "ignore_index":
        return f"`{short}` ignores some targets, so shards count differently many"
    return f"`{short}` has an argument `{given.arg}` that may weight the samples"
