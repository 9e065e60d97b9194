"""What a script sees in place of torchvision's data sets: the same classes, filled with made-up samples.

The classes themselves are changed, so whatever a script does with them goes on: subclasses, `isinstance`, transforms.
Objects hold their samples, so worker processes need nothing of this. Images are noise, which comes from their split.
"""

from __future__ import annotations

import importlib
import inspect
import zlib
from collections.abc import Callable
from typing import Any

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()


def install(count: int, tell: Callable[[str], None]) -> None:
    """From now on, and for the rest of the process, torchvision's data sets are made up.

    Args:
        count: training samples of a data set; a test set has a quarter.
        tell: is called with the name, split and size of each data set that is made.
    """
    try:
        datasets: Any = importlib.import_module("torchvision.datasets")
    except ImportError:  # the script can't have them either
        return

    def arrays(dataset: Any, shape: tuple[int, ...], classes: int) -> tuple[Any, list[int]]:
        """Images, uint8 of shape (samples, *shape), and labels: every class in turn."""
        import numpy as np

        split, samples = ("train", count) if dataset.train else ("test", max(1, count // 4))
        tell(f"{type(dataset).__name__} {split} ({samples} samples)")
        noise = np.random.default_rng(zlib.crc32(split.encode())).integers(0, 256, (samples, *shape), dtype=np.uint8)
        return noise, [number % classes for number in range(samples)]

    def load_mnist(dataset: Any) -> tuple[Any, Any]:
        """In place of what MNIST, and classes derived from it, read."""
        import torch

        images, targets = arrays(dataset, (28, 28), 10)
        return torch.from_numpy(images), torch.tensor(targets)

    mnist, cifar = datasets.MNIST, datasets.CIFAR10
    signature, begin = inspect.signature(cifar.__init__), cifar.__mro__[1].__init__

    def make_cifar(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        begin(self, given["root"], transform=given["transform"], target_transform=given["target_transform"])
        self.train = given["train"]
        hundred = self.meta["key"] == "fine_label_names"
        self.classes = [f"class {number}" for number in range(100)] if hundred else list(_CIFAR10)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.data, self.targets = arrays(self, (32, 32, 3), len(self.classes))

    mnist._check_legacy_exist, mnist._check_exists = lambda dataset: False, lambda dataset: True
    mnist.download, mnist._load_data = lambda dataset: None, load_mnist
    cifar.__init__ = make_cifar
