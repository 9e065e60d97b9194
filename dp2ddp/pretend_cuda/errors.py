"""What is raised where the pretend CUDA can't be used."""

from __future__ import annotations


class PretendCudaUnavailableError(RuntimeError):
    """The pretend CUDA can't be used here; the message says why, in one line.

    Attributes:
        todo: what the user can do about it, if anything.
    """

    def __init__(self, why: str, todo: str = "") -> None:
        super().__init__(why)
        self.todo = todo
