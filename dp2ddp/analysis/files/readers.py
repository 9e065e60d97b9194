"""What reads a file as a whole, by the name that it is given."""

from __future__ import annotations

import ast

from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument

#: The argument that names the file. (`open` and `torch.load` are converted by themselves.)
_READERS = {
    "numpy.load": (0, "file"),
    "numpy.loadtxt": (0, "fname"),
    "numpy.genfromtxt": (0, "fname"),
    "numpy.fromfile": (0, "file"),
    "torch.jit.load": (0, "f"),
    "torchvision.io.read_image": (0, "path"),
    "safetensors.torch.load_file": (0, "filename"),
    "PIL.Image.open": (0, "fp"),
    "cv2.imread": (0, "filename"),
    "imageio.imread": (0, "uri"),
    "imageio.v2.imread": (0, "uri"),
    "scipy.io.loadmat": (0, "file_name"),
    "scipy.sparse.load_npz": (0, "file"),
    "joblib.load": (0, "filename"),
    "zipfile.ZipFile": (0, "file"),
    "tarfile.open": (0, "name"),
    "h5py.File": (0, "name"),
    **{
        f"pandas.read_{kind}": (0, name)
        for kind, name in {
            **dict.fromkeys("csv table pickle".split(), "filepath_or_buffer"),
            **dict.fromkeys("json hdf".split(), "path_or_buf"),
            **dict.fromkeys("parquet feather".split(), "path"),
            "excel": "io",
        }.items()
    },
}
_METHODS = frozenset({"read_text", "read_bytes"})
_MODES = frozenset({"r", "r:", "r:gz", "r:bz2", "r:xz", "r:*", "rb"})


def read_by(names: Names, call: ast.Call) -> ast.expr | None:
    """The file that a call reads; None for a call that isn't known to read one."""
    path = names.qualified(call.func)
    if path is None:
        method = isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS
        return call.func.value if method else None  # type: ignore[attr-defined]
    place = _READERS.get(path)
    mode = argument(call, 1, "mode") if path in ("zipfile.ZipFile", "tarfile.open", "h5py.File") else None
    if place is None or (mode is not None and not (isinstance(mode, ast.Constant) and mode.value in _MODES)):
        return None
    return argument(call, *place)
