"""The states of all GPUs' generators, as checkpoints hold them: of which a rank's own is the first."""

from __future__ import annotations

from typing import Any

import torch
from children import call
from torch import nn

States = list[torch.Tensor]


def drawn(net: Any) -> list[Any]:
    """What the script draws on its GPU, and what the model drops of 64 rows of ones."""
    return [torch.rand(3, device="cuda").tolist(), net(torch.ones(64, 1, device="cuda")).tolist()]


def saved_by_data_parallel() -> States:
    from pretend_cuda.replicas import OracleDataParallel

    torch.manual_seed(3)
    drawn(OracleDataParallel(nn.Dropout(0.5).cuda()))
    torch.rand(7, device="cuda:1")
    return torch.cuda.get_rng_state_all()


def on_rank(theirs: States) -> Any:
    import dp2ddp_runtime as ddp

    ddp.setup(seed=3)
    ddp.wrap_model(nn.Linear(1, 1).cuda())
    states = torch.cuda.get_rng_state_all()
    first = torch.rand(3, device="cuda").tolist()
    torch.cuda.random.set_rng_state_all(iter(theirs))
    return states, first, torch.rand(3, device="cuda").tolist()


def after(states: States) -> list[float]:
    torch.cuda.set_rng_state_all(states)
    return torch.rand(3, device="cuda").tolist()  # type: ignore[no-any-return]


def test_states_of_all_gpus_carry_over(unused_port: str) -> None:
    theirs = call(saved_by_data_parallel)
    assert len(theirs) == 2
    assert not torch.equal(*theirs)
    at = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port}
    for (state, _), first, script in call(on_rank, theirs, ranks=2, PYTHONHASHSEED="0", **at):
        assert script == call(after, theirs)
        assert first == call(after, [state])
