"""What a script with `DistributedDataParallel` of its own, or a framework's, needs to be compared on a CPU.

Such a script knows nothing of this project: it is started as torchrun starts it, NCCL is gloo for it, and its replicas
draw the random numbers that `nn.DataParallel`'s draw in the original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from dp2ddp_runtime import streams
from torch.nn.parallel import DistributedDataParallel


def install(rank: int, on_cpu: bool, drew: Callable[[], None]) -> None:
    """From now on, and for the rest of the process, rank `rank`; `on_cpu` where that stands in for CUDA devices.

    `drew` is called when a wrapped model's forward has drawn random numbers.
    """
    stream = streams.Stream(rank=rank)
    forward: Any = DistributedDataParallel.forward

    def draws_as_a_replica(self: Any, *args: Any, **kwargs: Any) -> Any:
        with stream:
            before = streams.Position()
            output = forward(self, *args, **kwargs)
            if before.moved:
                drew()
            return output

    DistributedDataParallel.forward = draws_as_a_replica  # type: ignore[method-assign]
    if on_cpu:
        _without_nccl()


def _without_nccl() -> None:
    make: Any = DistributedDataParallel.__init__
    join: Any = dist.init_process_group
    new: Any = dist.new_group

    def on_the_cpu(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        make(self, module, None, None, *args, **kw)

    def by_gloo(backend: Any = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        join("gloo", *args, **kwargs)

    def group_by_gloo(*args: Any, backend: Any = None, device_id: Any = None, **kwargs: Any) -> Any:
        return new(*args, backend="gloo", **kwargs)

    DistributedDataParallel.__init__ = on_the_cpu  # type: ignore[method-assign]
    for module in (dist, dist.distributed_c10d):
        vars(module).update(init_process_group=by_gloo, new_group=group_by_gloo)
