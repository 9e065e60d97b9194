"""What scripts that dp2ddp has converted import: `nn.DataParallel`'s training, in one process per device.

The rule that keeps it from deadlock: every rank runs every line of the script; only sinks (a file, the terminal, a
logger) do nothing on ranks other than 0, and no sink contains a collective.
"""

from .checkpoint import load, load_state_dict, save
from .launch import barrier, setup
from .sinks import main_first, main_only, open
from .world import device, is_main, local_rank, rank, world_size

__all__ = [
    "barrier",
    "device",
    "is_main",
    "load",
    "load_state_dict",
    "local_rank",
    "main_first",
    "main_only",
    "open",
    "rank",
    "save",
    "setup",
    "world_size",
]
