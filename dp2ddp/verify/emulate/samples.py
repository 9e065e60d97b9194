"""Made-up images that a model can learn: a pattern for each class, and noise on it.

All come from their number, class and split alone; no global generator is drawn from.
"""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOLDER_CLASSES = 10
_BLOCK = 4  # pixels: the side of a pattern's squares
_DEPTH = 64  # of 255: how far patterns, and then noise, go from the middle
_FOLDER_SIDE = 24  # pixels, before an image of a folder is enlarged to its own size


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
    low, high = 128 - _DEPTH, 128 + _DEPTH
    patterns = np.random.default_rng(0).integers(low, high, squares, dtype=np.uint8)
    patterns = patterns.repeat(_BLOCK, axis=1).repeat(_BLOCK, axis=2)
    noise = np.random.default_rng(zlib.crc32(stream.encode()))
    offsets = noise.integers(-_DEPTH, _DEPTH, (len(of), *shape), dtype=np.int8)
    sums: NDArray[np.uint8] = patterns[of] + offsets.view(np.uint8)  # modulo 256, hence right for negative ones, too
    return sums


def fill_folder(target: Path, count: int, stream: str) -> None:
    """Make `target` a folder of `count` PNG images, as `torchvision.datasets.ImageFolder` reads: `class_3/0013.png`.

    Several processes may do so at the same time: the folder is there when it is complete.
    """
    if target.is_dir():
        return
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    classes = labels(count, min(FOLDER_CLASSES, count))
    for number, image in enumerate(images(classes, (_FOLDER_SIDE, _FOLDER_SIDE, 3), stream)):
        path = unfinished / f"class_{classes[number]}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        _enlarged(image, number).save(path)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)  # another process was faster


def _enlarged(image: NDArray[np.uint8], number: int) -> Any:
    """A PIL image of a size of its own, from 96 x 96 to 144 x 144 pixels."""
    import numpy as np
    from PIL import Image

    rows, columns = (np.arange(side) * _FOLDER_SIDE // side for side in (96 + 8 * (number % 7), 96 + number * 8 % 56))
    return Image.fromarray(image[rows][:, columns])
