"""What scripts that dp2ddp has converted import: `nn.DataParallel`'s training, in one process per device.

Every rank runs every line of the script, on whole batches; the wrapped model alone is split. Rank 0 is the process that
was started; the others are born at the first wrap (`birth`).
"""

from __future__ import annotations

from typing import NoReturn

from .checkpoint import load, save
from .loader import set_epoch, shard_loader
from .main_only import broadcast, main_only, own_files
from .model import WrappedModel, data_parallel, load_state_dict, wrap_model
from .ranks import barrier, gather, is_main, local_rank, rank, world_size
from .start import setup
from .streams import seed_everything
from .version import __version__

__all__ = [
    "WrappedModel",
    "__version__",
    "barrier",
    "broadcast",
    "data_parallel",
    "gather",
    "is_main",
    "load",
    "load_state_dict",
    "local_rank",
    "main_only",
    "own_files",
    "rank",
    "save",
    "seed_everything",
    "set_epoch",
    "setup",
    "shard_loader",
    "world_size",
    "wrap_model",
]


def __getattr__(name: str) -> NoReturn:
    """Tells of a name that isn't there what that means in a converted script."""
    if name.startswith("_"):  # asked for by Python and its tools
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(
        f"{__name__} {__version__} has no {name!r}: a script that calls it was converted by a newer dp2ddp; "
        "install the dp2ddp-runtime of that version, or convert again with this one"
    )
