"""What a script sees in place of torchvision's data sets: the same classes, filled with made-up samples.

The classes themselves are changed, so whatever a script does with them goes on: names imported from anywhere,
subclasses, `isinstance`, transforms, `repr`. Objects hold their samples, or what makes an image, so worker processes
need nothing of this, however they are started.

Images are noise, which trains as well as any for a comparison. It comes from its split, or from an image's name, alone;
no global generator is drawn from.
"""

from __future__ import annotations

import importlib
import inspect
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
_TEST_FOLDERS = ("val", "test", "eval")  # in the name of a folder of images that isn't trained on
_FOLDER_CLASSES = 10
_FOLDER_SIDE = 24  # pixels, before an image of a folder is enlarged to its own size


@dataclass(frozen=True)
class Maker:
    """Makes up data.

    Args:
        count: training samples of a data set; a test set has a quarter.
        tell: is called with the name, split and size of each data set that is made.
    """

    count: int
    tell: Callable[[str], None]

    def size(self, dataset: Any, is_test: bool) -> int:
        """How many samples the data set has, which is told."""
        count = max(1, self.count // 4) if is_test else self.count
        self.tell(f"{type(dataset).__name__} {'test' if is_test else 'train'} ({count} samples)")
        return count

    def arrays(self, dataset: Any, shape: tuple[int, int, int], classes: int) -> tuple[Any, list[int]]:
        """Images, uint8 of shape (samples, *shape), and labels: every class in turn."""
        count = self.size(dataset, not dataset.train)
        return _noise(str(dataset.train), count, *shape), [number % classes for number in range(count)]


def install(maker: Maker) -> None:
    """From now on, and for the rest of the process, torchvision's data sets are made up by `maker`."""
    try:
        datasets: Any = importlib.import_module("torchvision.datasets")
    except ImportError:  # the script can't have them either
        return
    for kind in (datasets.MNIST, datasets.EMNIST):
        kind._check_legacy_exist = lambda dataset: False
        kind._check_exists = lambda dataset: True
        kind.download = lambda dataset: None
        kind._load_data = lambda dataset: _mnist(dataset, maker)
    datasets.CIFAR10.__init__ = _cifar(datasets.CIFAR10, maker)
    datasets.DatasetFolder.__init__ = _dataset_folder(datasets.DatasetFolder.__init__, datasets.VisionDataset, maker)


def _mnist(dataset: Any, maker: Maker) -> tuple[Any, Any]:
    """In place of what MNIST, and classes derived from it, read."""
    import torch

    images, targets = maker.arrays(dataset, (28, 28, 1), 9)
    first = int(hasattr(dataset, "split"))  # EMNIST's letters are numbered from 1
    return torch.from_numpy(images[..., 0].copy()), torch.tensor(targets) + first


def _cifar(kind: Any, maker: Maker) -> Any:
    signature, begin = inspect.signature(kind.__init__), kind.__mro__[1].__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        begin(self, given["root"], transform=given["transform"], target_transform=given["target_transform"])
        self.train = given["train"]
        hundred = self.meta["key"] == "fine_label_names"
        self.classes = [f"class {number}" for number in range(100)] if hundred else list(_CIFAR10)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.data, self.targets = maker.arrays(self, (32, 32, 3), len(self.classes))

    return __init__


def _dataset_folder(original: Any, base: Any, maker: Maker) -> Any:
    """Folders of images, as ImageFolder reads them; no file is there. Folders of other files are left alone."""

    def __init__(  # noqa: N807
        self: Any,
        root: Any,
        loader: Any,
        extensions: Any = None,
        transform: Any = None,
        target_transform: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if extensions is not None and ".png" not in extensions:
            original(self, root, loader, extensions, transform, target_transform, *args, **kwargs)
            return
        base.__init__(self, root, transform=transform, target_transform=target_transform)
        name = os.path.basename(os.path.normpath(root)).lower()
        count = maker.size(self, "train" not in name and any(part in name for part in _TEST_FOLDERS))
        self.loader, self.extensions = image, extensions
        self.classes = [f"class_{number}" for number in range(_FOLDER_CLASSES)]
        self.class_to_idx = {each: number for number, each in enumerate(self.classes)}
        self.targets = [number % _FOLDER_CLASSES for number in range(count)]
        paths = [os.path.join(root, f"class_{label}", f"{number}.png") for number, label in enumerate(self.targets)]
        self.samples = [*zip(paths, self.targets)]

    return __init__


def image(path: str) -> Any:
    """The image of that name, of which there is no file, for PIL: 96 x 96 to 144 x 144 pixels."""
    from PIL import Image

    number, name = int(PurePath(path).stem), "/".join(PurePath(path).parts[-3:])
    sides = 96 + number * 8 % 56, 96 + 8 * (number % 7)
    noise = _noise(name, _FOLDER_SIDE, _FOLDER_SIDE, 3)
    return Image.fromarray(noise).resize(sides, Image.Resampling.NEAREST)


def _noise(stream: str, *shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(zlib.crc32(stream.encode())).integers(0, 256, shape, dtype=np.uint8)
