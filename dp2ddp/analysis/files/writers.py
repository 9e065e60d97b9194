"""What writes files and reports: functions by their path, methods by the package that their object comes from."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.roles import Class, Function, Instance, Module, Resolver
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument, keyword

#: Functions that write a file, and where they take its name.
FUNCTIONS_THAT_WRITE = {
    "numpy.save": (0, "file"),
    "numpy.savez": (0, "file"),
    "numpy.savez_compressed": (0, "file"),
    "numpy.savetxt": (0, "fname"),
    "cv2.imwrite": (0, "filename"),
    "cv2.imwritemulti": (0, "filename"),
    "matplotlib.pyplot.savefig": (0, "fname"),
    "matplotlib.pyplot.imsave": (0, "fname"),
    "matplotlib.image.imsave": (0, "fname"),
    "pylab.savefig": (0, "fname"),
    "torchvision.utils.save_image": (1, "fp"),
    "torchvision.io.write_png": (1, "filename"),
    "torchvision.io.write_jpeg": (1, "filename"),
    "torchvision.io.write_video": (0, "filename"),
    "torchaudio.save": (0, "uri"),
    "torch.jit.save": (1, "f"),
    "joblib.dump": (1, "filename"),
    "safetensors.torch.save_file": (1, "filename"),
    "scipy.io.savemat": (0, "file_name"),
    "scipy.io.wavfile.write": (0, "filename"),
    "scipy.misc.imsave": (0, "name"),
    "scipy.sparse.save_npz": (0, "file"),
    "skimage.io.imsave": (0, "fname"),
    "skvideo.io.vwrite": (0, "fname"),
    "soundfile.write": (0, "file"),
    "librosa.output.write_wav": (0, "path"),
    "tifffile.imwrite": (0, "file"),
    "tifffile.imsave": (0, "file"),
    "nibabel.save": (1, "filename"),
    "SimpleITK.WriteImage": (1, "fileName"),
    "os.makedirs": (0, "name"),
    "os.mkdir": (0, "path"),
} | {
    f"imageio.{version}{name}": (0, "uri")
    for version in ("", "v2.", "v3.")
    for name in "imwrite imsave mimsave mimwrite volwrite".split()
}
#: Those of them that write from C++ (or Rust), past Python: the runtime can't see it.
_NATIVE = frozenset(
    "cv2.imwrite cv2.imwritemulti torchvision.io.write_png torchvision.io.write_jpeg torchvision.io.write_video "
    "torchaudio.save torch.jit.save safetensors.torch.save_file skvideo.io.vwrite soundfile.write SimpleITK.WriteImage "
    "imageio.mimsave imageio.mimwrite imageio.v2.mimsave imageio.v2.mimwrite h5py.File".split()
)
_NATIVE_METHODS = frozenset("to_parquet to_feather to_hdf to_sql save_pretrained".split())
#: Functions that change files in ways that their arguments don't tell, and those that show something in a window.
_COMMANDS = frozenset("os.system subprocess.run subprocess.call subprocess.check_call subprocess.Popen".split())
_SHOWING = frozenset(
    "matplotlib.pyplot.show cv2.imshow cv2.namedWindow cv2.destroyWindow cv2.destroyAllWindows cv2.moveWindow".split()
)
#: What is made belongs to rank 0 as a whole.
_REPORTERS = frozenset(
    "visdom.Visdom tensorboard_logger.Logger cv2.VideoWriter imageio.get_writer imageio.v2.get_writer "
    "skvideo.io.FFmpegWriter tensorflow.summary.create_file_writer tensorflow.summary.FileWriter".split()
)
#: Packages whose functions report elsewhere: whatever they return is used by rank 0 alone.
REPORTING = (
    *("wandb.", "mlflow.", "neptune.", "comet_ml.", "swanlab.", "clearml.", "aim.Run"),
    *("tensorboard_logger.configure", "tensorboard_logger.log_"),
)
#: Functions that open a file for reading or for writing, by the mode behind its name.
_OPENERS = frozenset(
    "h5py.File zipfile.ZipFile tarfile.open gzip.open bz2.open lzma.open codecs.open numpy.memmap "
    "numpy.lib.format.open_memmap".split()
)
#: Methods that write a file, by the package that makes their objects, and whether they are called on their name.
_METHODS = {
    "PIL.": frozenset({"save"}),
    "torchvision.transforms.": frozenset({"save"}),
    "scipy.misc.": frozenset({"save"}),
    "matplotlib.": frozenset({"savefig", "print_png", "print_figure", "save", "write_png"}),
    "pylab.": frozenset({"savefig"}),
    "seaborn.": frozenset({"savefig", "save"}),
    "plotly.": frozenset({"write_html", "write_image", "write_json"}),
    "pandas.": frozenset(
        "to_csv to_pickle to_excel to_parquet to_json to_hdf to_feather to_html to_sql to_stata to_xml".split()
    ),
    "numpy.": frozenset({"tofile"}),
    "xml.etree.": frozenset({"write"}),
    "moviepy.": frozenset({"write_videofile", "write_gif", "write_images_sequence"}),
    "trimesh.": frozenset({"export"}),
}
_OF_PATHS = frozenset("write_text write_bytes mkdir touch unlink rename replace rmdir symlink_to".split())
#: The same by their names alone, where nothing is known of the object: nothing else has such methods.
_TELLING = frozenset(
    "savefig to_csv to_pickle to_excel to_parquet to_feather write_text write_bytes mkdir touch unlink write_html "
    "write_videofile save_pretrained".split()
)
_IMAGE = re.compile(r".*\.(png|jpe?g|gif|bmp|tiff?|webp|ppm|pdf|svg)", re.IGNORECASE | re.DOTALL)
_WRITING_MODE = re.compile(r"[wax]")


@dataclass(frozen=True)
class Writing:
    """What a call writes.

    Attributes:
        names: the expressions that name the file; all arguments of a command, none for what goes elsewhere.
        command: whether it runs something that may write anything.
        counts: whether what the call returns is used by rank 0 alone; else only a statement can be rank 0's.
        changes: whether it may also be read from what is made.
        native: whether it isn't Python's own functions that touch the disk, or something is shown.
    """

    names: tuple[ast.expr, ...] = ()
    command: bool = False
    counts: bool = False
    changes: bool = False
    native: bool = False


def _is_report(path: str) -> bool:
    return path in _REPORTERS or path.endswith(".SummaryWriter") or path.startswith(REPORTING)


class Writers:
    """Finds what writes files and reports."""

    def __init__(self, names: Names, resolver: Resolver, provenance: Provenance) -> None:
        self.names = names
        self.resolver = resolver
        self.provenance = provenance
        self._packages: dict[frozenset[ast.expr], set[str]] = {}

    def of(self, call: ast.Call) -> Writing | None:
        """What a call writes, None for one that isn't known to write."""
        path = self.names.qualified(call.func)
        if path is None:
            return self._method(call)
        if path in FUNCTIONS_THAT_WRITE:
            name = argument(call, *FUNCTIONS_THAT_WRITE[path])
            return Writing(() if name is None else (name,), counts=path == "cv2.imwrite", native=path in _NATIVE)
        if path in _COMMANDS | _SHOWING:
            given = (*call.args, *(k.value for k in call.keywords))
            return Writing(given, command=True, native=path in _SHOWING)
        if _is_report(path):
            return Writing(counts=True, native=True)
        return self._opener(path, call)

    @cached_property
    def of_rank_0(self) -> dict[ast.AST, str]:
        """The calls that only rank 0 makes, and the package of each: of reporters, and of what they make."""
        found: dict[ast.AST, str] = {}
        for call in self.provenance.source.calls:
            path = self.names.qualified(call.func)
            paths = {path} if path else self.packages(call.func.value) if isinstance(call.func, ast.Attribute) else ()
            found.update((call, each.split(".")[0]) for each in paths if _is_report(each))
        return found

    def _opener(self, path: str, call: ast.Call) -> Writing | None:
        if path == "sqlite3.connect":
            return Writing(tuple(call.args[:1]), counts=True, changes=self._is_read(call), native=True)
        mode = argument(call, 2 if path == "numpy.memmap" else 1, "mode") if path in _OPENERS else None
        if not isinstance(mode, ast.Constant) or not isinstance(mode.value, str):
            return None
        both = "+" in mode.value or (mode.value == "a" and path == "h5py.File")
        if not both and not _WRITING_MODE.match(mode.value):
            return None
        return Writing(tuple(call.args[:1]), counts=True, changes=both, native=path in _NATIVE)

    def _is_read(self, connection: ast.Call) -> bool:
        """Whether the program fetches rows from a data base."""
        fetching = (c for c in self._method_calls if c.func.attr.startswith("fetch"))  # type: ignore[attr-defined]
        loops = (n.iter for n in self.provenance.source.nodes if isinstance(n, (ast.For, ast.comprehension)))
        read = [*(c.func.value for c in fetching), *loops]  # type: ignore[attr-defined]
        return any(connection in self.makers(node) for node in read)

    @cached_property
    def _method_calls(self) -> list[ast.Call]:
        return [c for c in self.provenance.source.calls if isinstance(c.func, ast.Attribute)]

    # -- methods -------------------------------------------------------------------------------------------------------

    def _method(self, call: ast.Call) -> Writing | None:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in _ALL_METHODS:
            return None
        method = func.attr
        if self._is_defined(func) if method in _TELLING else self.is_own(func):
            return None
        packages = self.packages(func.value)
        if any(package.startswith("pathlib.") for package in packages) and method in _OF_PATHS:
            return Writing((func.value,))
        name = call.args[0] if call.args else keyword(call, "fp") or keyword(call, "fname")
        known = [methods for start, methods in _METHODS.items() if any(p.startswith(start) for p in packages)]
        if any(method in methods for methods in known) or (method in _TELLING and not known):
            names = (func.value,) if method in _OF_PATHS else (name,) if name is not None else ()
            return Writing(names, native=method in _NATIVE_METHODS)
        is_image = method == "save" and not packages and name is not None and self._is_image(name)
        return Writing((name,)) if is_image and name is not None else None

    def _is_image(self, name: ast.expr) -> bool:
        """Whether a name is that of an image file: what is saved there is an image, wherever it comes from."""
        texts = [n for n in ast.walk(name) if isinstance(n, ast.Constant)]
        return bool(texts) and isinstance(texts[-1].value, str) and _IMAGE.fullmatch(texts[-1].value) is not None

    def is_own(self, method: ast.Attribute) -> bool:
        """Whether a method is, or may be, one of the script's own classes'."""
        if self._is_defined(method) or self.resolver.holds(method.value, Class, Instance, Module):
            return True
        return isinstance(method.value, ast.Call) and self.names.qualified(method.value.func) == "builtins.super"

    def _is_defined(self, method: ast.Attribute) -> bool:
        """Whether the script defines a method; else an object of its own class has it from a library's."""
        return self.resolver.holds(method, Function)

    def packages(self, node: ast.expr) -> set[str]:
        """The functions of libraries that make the object which an expression is, or is an element of."""
        sources = self.provenance.of(node)
        if sources not in self._packages:
            makers = (self.names.qualified(maker.func) for maker in self.makers(node))
            self._packages[sources] = {path for path in makers if path is not None}
        return self._packages[sources]

    def makers(self, node: ast.expr) -> set[ast.Call]:
        """The calls of libraries' functions from which an object comes: by methods, operators and items, too."""
        found: set[ast.Call] = set()
        todo = [node]
        seen: set[ast.expr] = set()
        while todo:
            one = todo.pop()
            for value in self.provenance.of(one) - seen:
                seen.add(value)
                if isinstance(value, ast.Call) and self.names.qualified(value.func) is not None:
                    found.add(value)
                else:
                    todo += self._made_of(value)
        return found

    def _made_of(self, node: ast.expr) -> list[ast.expr]:
        """What an object comes from that no library's function makes."""
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Await)):
            return [node.value, *self.provenance.elements_of(node)]
        if isinstance(node, ast.Call):
            return [node.func]
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, (ast.List, ast.Tuple)):
            return node.elts
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return [node.elt]
        return self.provenance.elements_of(node)


_ALL_METHODS = _OF_PATHS | _TELLING | frozenset().union(*_METHODS.values())
