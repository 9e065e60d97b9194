"""What a script sees in place of torchvision's data sets: the same classes, filled with made-up samples.

The classes themselves are changed, so whatever a script does with them goes on: names imported from anywhere,
subclasses, `isinstance`, transforms, `repr`. Objects hold their samples, or paths of image files that exist, so worker
processes need nothing of this, however they are started.

Images are noise, which trains as well as any for a comparison. It comes from its split alone; no global generator is
drawn from.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
_TEST_FOLDERS = ("val", "test", "eval")  # in the name of a folder of images that isn't trained on
_FOLDER_CLASSES = 10
_FOLDER_SIDE = 24  # pixels, before an image of a folder is enlarged to its own size


@dataclass(frozen=True)
class MadeUp:
    """A data set that was filled with made-up samples: its class's name, its split and its number of samples."""

    dataset: str
    split: str
    samples: int

    def __str__(self) -> str:
        return f"{self.dataset} {self.split} ({self.samples} samples)"


@dataclass(frozen=True)
class Maker:
    """Makes up data.

    Args:
        count: training samples of a data set; a test set has a quarter.
        folder: where image files are written, for `ImageFolder`.
        tell: is called with each data set that is made.
    """

    count: int
    folder: Path
    tell: Callable[[MadeUp], None]

    def size(self, split: str) -> int:
        """How many samples a split has."""
        return max(1, self.count // 4) if split == "test" else self.count

    def made(self, dataset: Any, split: str, count: int) -> None:
        """Tell that `dataset` has been filled."""
        self.tell(MadeUp(type(dataset).__name__, split, count))

    def arrays(self, dataset: Any, split: str, shape: tuple[int, int, int], classes: int) -> tuple[Any, list[int]]:
        """Images, uint8 of shape (samples, *shape), and labels: every class in turn."""
        count = self.size(split)
        self.made(dataset, split, count)
        return images(count, shape, split), [number % classes for number in range(count)]


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
    datasets.DatasetFolder.__init__ = _dataset_folder(datasets.DatasetFolder.__init__, maker)


def _mnist(dataset: Any, maker: Maker) -> tuple[Any, Any]:
    """In place of what MNIST, and classes derived from it, read."""
    import torch

    given = getattr(dataset, "split", "")  # EMNIST's, whose letters are numbered from 1
    first = int(given == "letters")
    classes = len(getattr(dataset, "classes_split_dict", {}).get(given, range(10))) - first
    images, targets = maker.arrays(dataset, "train" if dataset.train else "test", (28, 28, 1), classes)
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
        split = "train" if self.train else "test"
        self.data, self.targets = maker.arrays(self, split, (32, 32, 3), len(self.classes))

    return __init__


def _dataset_folder(original: Any, maker: Maker) -> Any:
    """Folders of images, as ImageFolder reads them: real files, in another place.

    Folders of other files are left alone.
    """

    def __init__(self: Any, root: Any, loader: Any, extensions: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if extensions is not None and ".png" not in extensions:
            original(self, root, loader, extensions, *args, **kwargs)
            return
        name = os.path.basename(os.path.normpath(root)).lower()
        test = "train" not in name and any(part in name for part in _TEST_FOLDERS)
        split = "test" if test else "train"
        maker.folder.mkdir(parents=True, exist_ok=True)
        fill_folder(maker.folder / split, maker.size(split), split)
        original(self, str(maker.folder / split), loader, extensions, *args, **kwargs)
        self.root = os.path.expanduser(root)
        maker.made(self, split, len(self.samples))

    return __init__


def images(count: int, shape: tuple[int, int, int], split: str) -> NDArray[np.uint8]:
    """Noise, uint8 of shape (count, *shape): `shape` is height, width and channels; each split has its own."""
    import numpy as np

    return np.random.default_rng(zlib.crc32(split.encode())).integers(0, 256, (count, *shape), dtype=np.uint8)


def fill_folder(target: Path, count: int, stream: str) -> None:
    """Make `target` a folder of `count` PNG images, as `torchvision.datasets.ImageFolder` reads: `class_3/0013.png`.

    Their sizes go from 96 x 96 to 144 x 144 pixels. Several processes may do so at the same time: the folder is there
    when it is complete.
    """
    from PIL import Image

    if target.is_dir():
        return
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    for number, image in enumerate(images(count, (_FOLDER_SIDE, _FOLDER_SIDE, 3), stream)):
        path = unfinished / f"class_{number % _FOLDER_CLASSES}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        sides = 96 + number * 8 % 56, 96 + 8 * (number % 7)
        Image.fromarray(image).resize(sides, Image.Resampling.NEAREST).save(path)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)  # another process was faster
