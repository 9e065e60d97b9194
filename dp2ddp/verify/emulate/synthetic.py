"""What a script sees in place of torchvision's data sets: the same classes, filled with made-up samples.

The classes themselves are changed, so whatever a script does with them goes on: names imported from anywhere,
subclasses, `isinstance`, transforms, `repr`. Objects hold their samples, or paths of image files that exist, so worker
processes need nothing of this, however they are started. Nothing is imported before the script imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dp2ddp.verify.emulate import samples

_HOME = "torchvision.datasets"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
_STL10 = "airplane bird car cat deer dog horse monkey ship truck".split()
_TEST_FOLDERS = ("val", "test", "eval")  # in the name of a folder of images that isn't trained on


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
        targets = samples.labels(self.size(split), classes)
        self.made(dataset, split, len(targets))
        return samples.images(targets, shape, split), targets


def install(maker: Maker) -> None:
    """From now on, and for the rest of the process, torchvision's data sets are made up by `maker`."""
    if _HOME in sys.modules:
        _fill(sys.modules[_HOME], maker)
    else:
        sys.meta_path.insert(0, _Finder(maker))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `torchvision.datasets` as the other finders do, and has its classes changed once it is imported."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _HOME or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            _after_execution(spec.loader, lambda module: _fill(module, self.maker))
        return spec


def _after_execution(loader: Any, then: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        then(module)

    loader.exec_module = exec_module


def _fill(datasets: Any, maker: Maker) -> None:
    _fill_mnist(datasets, maker)
    datasets.CIFAR10.__init__ = _cifar(datasets.VisionDataset, maker)
    datasets.SVHN.__init__ = _svhn(datasets.VisionDataset, maker)
    datasets.STL10.__init__ = _stl10(datasets.VisionDataset, maker)
    datasets.DatasetFolder.__init__ = _dataset_folder(datasets.DatasetFolder.__init__, maker)
    datasets.ImageNet.parse_archives = _nothing
    names = {f"class_{number}": (f"class {number}",) for number in range(samples.FOLDER_CLASSES)}
    datasets.imagenet.load_meta_file = lambda root, file=None: (names, [])


def _nothing(dataset: Any) -> None:
    """In place of a download."""


def _fill_mnist(datasets: Any, maker: Maker) -> None:
    """MNIST and the classes derived from it have their constructors split up: only what reads files is replaced."""

    def load(dataset: Any) -> tuple[Any, Any]:
        import torch

        split = getattr(dataset, "what", "train" if dataset.train else "test")  # QMNIST's
        first = int(getattr(dataset, "split", "") == "letters")  # EMNIST's letters are numbered from 1
        classes = len(getattr(dataset, "classes_split_dict", {}).get(getattr(dataset, "split", ""), range(10)))
        images, targets = maker.arrays(dataset, "test" if "test" in split else "train", (28, 28, 1), classes - first)
        labels = torch.from_numpy(targets) + first
        if hasattr(dataset, "compat"):  # QMNIST: the class, and seven numbers on where the sample comes from
            labels = torch.nn.functional.pad(labels[:, None], (0, 7))
        return torch.from_numpy(images[..., 0].copy()), labels

    for kind in (datasets.MNIST, datasets.EMNIST, datasets.QMNIST):
        kind._check_legacy_exist = lambda dataset: False
        kind._check_exists = lambda dataset: True
        kind.download = _nothing
        kind._load_data = load


def _cifar(base: Any, maker: Maker) -> Any:
    def __init__(  # noqa: N807
        self: Any,
        root: Any,
        train: bool = True,
        transform: Any = None,
        target_transform: Any = None,
        download: bool = False,
    ) -> None:
        base.__init__(self, root, transform=transform, target_transform=target_transform)
        self.train = train
        hundred = self.meta["key"] == "fine_label_names"
        self.classes = [f"class {number}" for number in range(100)] if hundred else list(_CIFAR10)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.data, targets = maker.arrays(self, "train" if train else "test", (32, 32, 3), len(self.classes))
        self.targets = targets.tolist()

    return __init__


def _svhn(base: Any, maker: Maker) -> Any:
    def __init__(  # noqa: N807
        self: Any,
        root: Any,
        split: str = "train",
        transform: Any = None,
        target_transform: Any = None,
        download: bool = False,
    ) -> None:
        base.__init__(self, root, transform=transform, target_transform=target_transform)
        self.split = _known(split, self.split_list)
        self.url, self.filename, self.file_md5 = self.split_list[split][:3]
        images, self.labels = maker.arrays(self, split, (32, 32, 3), 10)
        self.data = images.transpose(0, 3, 1, 2)

    return __init__


def _stl10(base: Any, maker: Maker) -> Any:
    def __init__(  # noqa: N807
        self: Any,
        root: Any,
        split: str = "train",
        folds: int | None = None,
        transform: Any = None,
        target_transform: Any = None,
        download: bool = False,
    ) -> None:
        base.__init__(self, root, transform=transform, target_transform=target_transform)
        self.split, self.folds, self.classes = _known(split, self.splits), self._verify_folds(folds), list(_STL10)
        images, self.labels = maker.arrays(self, split, (96, 96, 3), 10)
        unlabeled = {"unlabeled": 0, "train+unlabeled": len(images) // 2}.get(split, len(images))
        self.labels[unlabeled:] = -1
        self.data = images.transpose(0, 3, 1, 2)

    return __init__


def _known(split: str, splits: Collection[str]) -> str:
    """`split`, if it is one of `splits`. Raises `ValueError` otherwise, as torchvision does."""
    if split not in splits:
        raise ValueError(f"Unknown value {split!r} for argument split. Valid values are {{{', '.join(splits)}}}.")
    return split


def _dataset_folder(original: Any, maker: Maker) -> Any:
    """Folders of images, and all that is built on them (ImageFolder, ImageNet): real files, in another place.

    Folders of other files are left alone.
    """

    def __init__(self: Any, root: Any, loader: Any, extensions: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if extensions is not None and ".png" not in extensions:
            original(self, root, loader, extensions, *args, **kwargs)
            return
        name = os.path.basename(os.path.normpath(root)).lower()
        test = "train" not in name and any(part in name for part in _TEST_FOLDERS)
        split = "test" if test else "train"
        folder = maker.folder / split
        maker.folder.mkdir(parents=True, exist_ok=True)
        samples.fill_folder(folder, maker.size(split), split)
        original(self, str(folder), loader, extensions, *args, **kwargs)
        self.root = os.path.expanduser(root)
        maker.made(self, split, len(self.samples))

    return __init__
