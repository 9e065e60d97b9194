"""The native half (`native/*.cpp`), compiled once for each torch and kept in the user's cache."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SOURCES = Path(__file__).with_name("native")
# What torch itself is compiled with since 2.13; g++ 10 and later know it.
FLAGS = ("-std=c++20", "-fPIC", "-O1", "-DUSE_DISTRIBUTED")


class PretendCudaUnavailableError(RuntimeError):
    """The pretend CUDA can't be used here; the message says why, in one line."""


def load() -> ctypes.CDLL:
    """The native half, in this process from now on.

    Raises:
        PretendCudaUnavailableError: this torch has no CUDA in it, or there is no compiler that does it.
    """
    return ctypes.CDLL(str(compiled()))


def compiled() -> Path:
    """Where the native half is, compiled first if the cache doesn't have it. Raises as `load`."""
    if torch.version.cuda is None:
        raise PretendCudaUnavailableError(
            f"pretend CUDA needs a CUDA build of torch, which {torch.__version__} isn't; no GPU is needed"
        )
    if not hasattr(torch, "AcceleratorError"):  # to compile it all the same would take a minute, in vain
        raise PretendCudaUnavailableError(f"pretend CUDA was made for torch 2.15, and not for {torch.__version__}")
    library = _cached()
    if not library.exists():
        _compile_once(library)
    return library


def _compile_once(library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.with_suffix(".lock"), "w") as file:  # it takes a minute of a processor: once for all
        fcntl.flock(file, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)


def _cached() -> Path:
    """Where the compiled file is: its name has torch's version, and all that it was made of."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    made_of = hashlib.sha256(" ".join(FLAGS).encode())
    # Of two builds of one version the headers may differ, and what they are linked with.
    made_of.update(f"{torch.version.git_version} {torch.version.cuda} {_torch()}".encode())
    for source in sorted(SOURCES.iterdir()):
        made_of.update(source.name.encode() + b"\0" + source.read_bytes())
    return Path(home) / "dp2ddp" / f"pretend_cuda-{torch.__version__}-{made_of.hexdigest()[:16]}.so"


def _torch() -> Path:
    return Path(torch.__file__).parent


def _compile(library: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise PretendCudaUnavailableError("pretend CUDA needs g++, once, to compile a small file; install it")
    # In a folder of its own, then moved: other processes see the whole file or none.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        include = [f"-I{_torch() / 'include'}", f"-I{_torch() / 'include/torch/csrc/api/include'}"]
        sources = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for each in [
                pool.submit(_run, compiler, *FLAGS, *include, "-c", str(source), "-o", str(made))
                for source, made in zip(sources, objects)
            ]:
                each.result()
        lib = _torch() / "lib"
        made = Path(folder) / library.name
        links = [f"-L{lib}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{lib}"]
        _run(compiler, "-shared", *map(str, objects), *links, "-o", str(made))
        os.replace(made, library)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        why = errors[0] if errors else done.stderr[-300:]
        raise PretendCudaUnavailableError(f"pretend CUDA can't be compiled for torch {torch.__version__}: {why}")
