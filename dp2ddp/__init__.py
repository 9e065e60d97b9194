"""dp2ddp turns an `nn.DataParallel` training script into a `DistributedDataParallel` one that trains the same model."""

__version__ = "0.1.0"

#: The runtime's import name.
RUNTIME_PACKAGE = "dp2ddp_runtime"
