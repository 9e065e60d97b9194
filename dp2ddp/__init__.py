"""dp2ddp turns an `nn.DataParallel` training script into a `DistributedDataParallel` one that trains the same model."""

from pathlib import Path

#: The runtime's import name.
RUNTIME_PACKAGE = "dp2ddp_runtime"


def _runtime_source() -> Path:
    here = Path(__file__).resolve().parent
    installed = here / "runtime" / RUNTIME_PACKAGE
    return installed if installed.is_dir() else here.parent / "runtime" / RUNTIME_PACKAGE


#: The source of this version's runtime. It comes along whether or not the runtime is installed to be imported.
RUNTIME_SOURCE = _runtime_source()
#: One version for both: the runtime, which runs without this package, has it.
__version__ = (RUNTIME_SOURCE / "version.py").read_text("utf-8").split('"')[-2]
