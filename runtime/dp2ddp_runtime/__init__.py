"""What scripts that dp2ddp has converted import: `nn.DataParallel`'s training, in one process per device.

The rule that keeps it from deadlock: every rank runs every line of the script; only sinks (a file, the terminal, a
logger) do nothing on ranks other than 0, and no sink contains a collective.
"""

from typing import NoReturn

from .base.world import device, device_count, is_main, local_rank, rank, world_size
from .batches import losses, rowwise, views  # noqa: F401 - they enter what they can do into `deferred.RULES`
from .batches.fewer import release_idle
from .batches.loader import set_epoch, shard_loader
from .model.wrapped import WrappedModel, data_parallel, load_state_dict, wrap_model
from .operations import barrier, broadcast, gather
from .rank_zero.checkpoint import load, save
from .rank_zero.main_only import main_first, main_only, own_files
from .ranks.rng import seed_everything
from .setup import setup
from .version import __version__

__all__ = [
    "WrappedModel",
    "__version__",
    "barrier",
    "broadcast",
    "data_parallel",
    "device",
    "device_count",
    "gather",
    "is_main",
    "load",
    "load_state_dict",
    "local_rank",
    "main_first",
    "main_only",
    "own_files",
    "rank",
    "release_idle",
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
