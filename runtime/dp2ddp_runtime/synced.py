"""BatchNorm over the rows of all ranks, on every device (`sync_bn=True`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from .gradients import ALONE, Copy, Sum


class _Synced:
    """What a BatchNorm layer's copy does in place of its forward while it takes a batch's statistics.

    Rows that are none of this rank's, on which it runs beside the others, don't count.
    """

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        if not (self.training or self.running_mean is None):
            return super().forward(input)  # type: ignore[misc,no-any-return]
        dims = [dim for dim in range(input.dim()) if dim != 1]
        wide = input.double() if input.dtype == torch.float64 else input.float()
        count = wide.new_tensor(0.0 if Copy.idle else wide.numel() / max(1, wide.size(1)))
        counted = 0.0 if Copy.idle else 1.0
        first, rows = _total(wide.sum(dims) * counted, count)
        mean = first / rows
        centred = wide - _along_channels(mean, wide)
        second, _ = _total((centred * centred).sum(dims) * counted, count)
        variance = second / rows
        if hasattr(self, "_compute_mean_std"):  # a package's own, in which `eps` may be a floor
            inverse = self._compute_mean_std(first, second + first * mean, rows)[1]
        else:
            self._remember(mean.detach(), (second / (rows - 1).clamp(min=1)).detach())
            inverse = (variance + self.eps).rsqrt()
        out = centred * _along_channels(inverse, wide)
        if self.affine:
            out = out * _along_channels(self.weight.to(out.dtype), out) + _along_channels(self.bias.to(out.dtype), out)
        return out.to(input.dtype)

    @torch.no_grad()
    def _remember(self: Any, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """As https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html says."""
        if not (self.training and self.track_running_stats and self.running_mean is not None):
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def _total(own: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ranks' sums and counts. What each makes of them is its own, so their gradients are summed, too."""
    flat = torch.cat([own, count.view(1)])
    (summed,) = Copy.apply(ALONE, None, *Sum.apply(ALONE, None, flat))[1:]
    return summed[:-1], summed[-1].detach()


def _along_channels(each: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return each.view([1, -1, *(1 for _ in range(like.dim() - 2))])


@functools.cache
def synced_class(kind: Any) -> Any:
    """A class for a BatchNorm layer's copies, by the same name."""
    return type(kind.__name__, (_Synced, kind), {"__module__": kind.__module__})


def takes_all_rows(layer: nn.Module, which: str) -> bool:
    """Whether a layer is to be synchronised, of "all" BatchNorm layers, or of those that "own" ones stand for.

    Own ones are those of the packages that let DataParallel's replicas meet; each holds a `_sync_master`:
    https://github.com/vacancy/Synchronized-BatchNorm-PyTorch.
    """
    is_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return is_norm and (which == "all" or (which == "own" and hasattr(layer, "_sync_master")))


def refuse_more_than_input(module: nn.Module) -> None:
    """Where statistics are to be all ranks'.

    Raises:
        TypeError: a BatchNorm layer's forward takes more than its input, so it isn't torch's.
    """
    for name, layer in module.named_modules():
        known = nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward
        is_known = type(layer).forward in known or takes_all_rows(layer, "own")
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not is_known:
            raise TypeError(
                f"sync_bn=True can't take the place of {name or 'the model'} ({type(layer).__name__}), which has a "
                "forward of its own: wrap the model without sync_bn, or let that layer's class be torch's"
            )
