"""What `--device cuda` means on this machine: its GPUs, or pretend ones where it has too few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from dp2ddp.errors import BadInput
from dp2ddp.pretend_cuda import PretendCudaUnavailableError, build
from dp2ddp.verify.run.options import Options


def chosen(options: Options, compiling: Callable[[], None] = lambda: None) -> Options:
    """The options, with pretend devices in place of CUDA's that aren't there.

    Args:
        compiling: is called if the pretend CUDA has to be compiled first, which takes a minute.

    Raises:
        BadInput: `--steps auto` on GPUs; fewer GPUs than replicas, where none can be pretended either.
    """
    if not options.cuda:
        return options
    there, wanted = torch.cuda.device_count(), options.replicas
    if there >= wanted:
        if options.auto:
            raise BadInput("--steps auto", what="on GPUs the scripts run in turn", todo="give a number of steps")
        return options
    try:
        build.compiled(compiling)
    except PretendCudaUnavailableError as error:
        what = f"{there} GPU(s) here, {wanted} asked for, and {error}"
        raise BadInput("--device cuda", what=what, todo=error.todo or "try --device cpu") from error
    return replace(options, cuda=False, pretended=True)
