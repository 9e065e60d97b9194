"""What is raised where the pretend CUDA can't be used."""

from __future__ import annotations


class PretendCudaUnavailableError(RuntimeError):
    """The pretend CUDA can't be used here; the message says why, in one line."""
