"""What the hand-written script and those of the frameworks share: arguments, and each case's classes and formulas."""

import argparse
import importlib

import numpy as np
import torch
import torch.nn.functional as F


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


class Classified:
    """A batch and what the original computes from it, on a rank's samples."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def loss(self, out):
        return F.cross_entropy(out, self.y)

    def score(self, out):
        """How many answers are right, and of how many."""
        return (out.argmax(1) == self.y).sum().item(), len(self.y)


class Segmented(Classified):
    def loss(self, out):
        return F.cross_entropy(out, self.y, ignore_index=255)

    def score(self, out):
        valid = self.y != 255
        return ((out.argmax(1) == self.y) & valid).sum().item(), valid.sum().item()


class Mixed(Classified):
    """Each image is mixed with one of the same rank, as tutorials do."""

    def __init__(self, x, y):
        self.lam = np.random.beta(0.2, 0.2)
        perm = torch.randperm(x.size(0), device=x.device)
        self.x = self.lam * x + (1 - self.lam) * x[perm]
        self.y, self.other = y, y[perm]

    def loss(self, out):
        return self.lam * F.cross_entropy(out, self.y) + (1 - self.lam) * F.cross_entropy(out, self.other)

    def score(self, out):
        guess = out.argmax(1)
        right = self.lam * (guess == self.y).sum() + (1 - self.lam) * (guess == self.other).sum()
        return right.item(), len(self.y)


class Boxed(Classified):
    """Each sample has a list of boxes of its own length."""

    def loss(self, out):
        loss, *self.found = importlib.import_module("detection").box_loss(out, self.y)
        return loss

    def score(self, out):
        return self.found


def moved(value, device):
    """A tensor, or a list of them, on the device."""
    return [each.to(device) for each in value] if isinstance(value, list) else value.to(device)


def case(name):
    """The original's model and data, its batches, and its `collate_fn` if it has one."""
    original = importlib.import_module(name)
    kinds = {"segmentation": Segmented, "mixup": Mixed, "detection": Boxed}
    return original.Net, original.Data, kinds.get(name, Classified), getattr(original, "collate", None)
