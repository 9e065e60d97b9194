"""Checksums of tensors, by which ranks tell each other what they have."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .collectives import bytes_of, plain

_PIECE = 1 << 20  # numbers at once: each takes 24 bytes meanwhile
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@torch.inference_mode(False)
@torch.no_grad()
def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Two sums over the bits of a tensor, the second one depending on their order. On the CPU; shape (2,), int64."""
    memory = bytes_of(plain(tensor))
    words = memory.view(torch.int16) if tensor.element_size() % 2 == 0 else memory
    sums = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, len(words), _PIECE):
        values = words[start : start + _PIECE].to(torch.int64)
        places = torch.arange(start + 1, start + 1 + len(values), device=values.device) % 65521
        sums += torch.stack([values.sum(), (values * places).sum()])
    return sums.cpu()


@torch.inference_mode(False)
@torch.no_grad()
def bit_sums(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The sums of dense tensors' bits, taken as whole numbers; they are looked at together."""
    flat = [plain(each).view(-1) for each in tensors.values()]
    sums = [each.view(_BITS.get(each.element_size(), torch.int64)).sum(dtype=torch.int64) for each in flat]
    return dict(zip(tensors, torch.stack([each.to(sums[0].device) for each in sums]).tolist() if sums else ()))
