"""What a star import of PyTorch's brings, as far as conversions ask for it."""

from __future__ import annotations

_PARALLEL = frozenset(
    "DataParallel DistributedDataParallel data_parallel replicate scatter parallel_apply gather".split()
)
_NAMES = {
    "torch": frozenset("device load manual_seed no_grad save set_grad_enabled Generator Tensor".split()),
    "torch.cuda": frozenset("current_device device_count is_available manual_seed manual_seed_all set_device".split()),
    "torch.nn": frozenset("functional init modules parallel parameter utils".split()),
    "torch.nn.modules": frozenset(),
    "torch.nn.parallel": _PARALLEL,
    "torch.nn.parallel.data_parallel": frozenset({"DataParallel", "data_parallel"}),
    "torch.optim": frozenset("lr_scheduler swa_utils ASGD Adam LBFGS NAdam Optimizer RAdam RMSprop Rprop SGD".split())
    | frozenset("Adadelta Adafactor Adagrad AdamW Adamax SparseAdam".split()),
    "torch.utils.data": frozenset(
        "BatchSampler ChainDataset ConcatDataset DataLoader Dataset DistributedSampler IterableDataset RandomSampler "
        "Sampler SequentialSampler StackDataset Subset SubsetRandomSampler TensorDataset WeightedRandomSampler "
        "default_collate get_worker_info random_split".split()
    ),
    "torch.utils.data.dataloader": frozenset({"DataLoader", "default_collate"}),
}
# These have too many classes for a list: there a capital tells one.
_MANY = frozenset({"torch.nn", "torch.nn.modules"})


def starred(module: str, name: str) -> str | None:
    """The dotted path of `name` where ``from module import *`` brings it, None where that isn't known."""
    known = name in _NAMES.get(module, ())
    return f"{module}.{name}" if known or (module in _MANY and name[0].isupper()) else None
