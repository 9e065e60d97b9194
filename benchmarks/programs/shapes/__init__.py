"""The shapes of a training step. Importing this enters all of them into the catalogue."""

from . import around, backwards, gradients, leaves, losses, second_order

__all__ = ["around", "backwards", "gradients", "leaves", "losses", "second_order"]
