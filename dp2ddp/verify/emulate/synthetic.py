"""What a script sees in place of torchvision's data sets: the same classes, filled with made-up samples.

The classes themselves are changed, so whatever a script does with them goes on: names imported from anywhere,
subclasses, `isinstance`, transforms, `repr`. Objects hold their samples, or paths of image files that exist, so worker
processes need nothing of this, however they are started.

A model can learn the images: each class has a pattern, under noise. All come from their number, class and split alone;
no global generator is drawn from.
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
_BLOCK = 4  # pixels: the side of a pattern's squares
_DEPTH = 64  # of 255: how far patterns, and then noise, go from the middle
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

    def arrays(self, dataset: Any, split: str, shape: tuple[int, int, int], classes: int) -> tuple[Any, Any]:
        """Images, uint8 of shape (samples, *shape), and labels, int64 of shape (samples,)."""
        targets = labels(self.size(split), classes)
        self.made(dataset, split, len(targets))
        return images(targets, shape, split), targets


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
    return torch.from_numpy(images[..., 0].copy()), torch.from_numpy(targets) + first


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
        self.data, targets = maker.arrays(self, "train" if self.train else "test", (32, 32, 3), len(self.classes))
        self.targets = targets.tolist()

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


def labels(count: int, classes: int) -> NDArray[np.int64]:
    """Classes of `count` samples, int64 of shape (count,): every class in turn."""
    import numpy as np

    return np.arange(count, dtype=np.int64) % classes


def images(of: NDArray[np.int64], shape: tuple[int, int, int], stream: str) -> NDArray[np.uint8]:
    """Images of the classes `of`, uint8 of shape (samples, *shape).

    Args:
        of: the class of each sample, from 0.
        shape: height and width, multiples of 4, and channels.
        stream: where the noise comes from: "train" and "test" have the same patterns and other noise.
    """
    import numpy as np

    height, width, channels = shape
    squares = (int(of.max(initial=0)) + 1, height // _BLOCK, width // _BLOCK, channels)
    patterns = np.random.default_rng(0).integers(128 - _DEPTH, 128 + _DEPTH, squares, dtype=np.uint8)
    patterns = patterns.repeat(_BLOCK, axis=1).repeat(_BLOCK, axis=2)
    noise = np.random.default_rng(zlib.crc32(stream.encode()))
    offsets = noise.integers(-_DEPTH, _DEPTH, (len(of), *shape), dtype=np.int8)
    sums: NDArray[np.uint8] = patterns[of] + offsets.view(np.uint8)  # modulo 256, hence right for negative ones, too
    return sums


def fill_folder(target: Path, count: int, stream: str) -> None:
    """Make `target` a folder of `count` PNG images, as `torchvision.datasets.ImageFolder` reads: `class_3/0013.png`.

    Their sizes go from 96 x 96 to 144 x 144 pixels. Several processes may do so at the same time: the folder is there
    when it is complete.
    """
    import numpy as np
    from PIL import Image

    if target.is_dir():
        return
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    classes = labels(count, min(_FOLDER_CLASSES, count))
    for number, image in enumerate(images(classes, (_FOLDER_SIDE, _FOLDER_SIDE, 3), stream)):
        path = unfinished / f"class_{classes[number]}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        sides = 96 + 8 * (number % 7), 96 + number * 8 % 56
        rows, columns = (np.arange(side) * _FOLDER_SIDE // side for side in sides)
        Image.fromarray(image[rows][:, columns]).save(path)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)  # another process was faster
