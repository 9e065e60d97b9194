"""The states of all GPUs' generators, as checkpoints hold them: a rank sees one GPU, DataParallel's process all."""

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
    from dp2ddp.pretend_cuda.data_parallel import OracleDataParallel

    torch.manual_seed(3)
    drawn(OracleDataParallel(nn.Dropout(0.5).cuda()))
    torch.rand(7, device="cuda:1")
    return torch.cuda.get_rng_state_all()


def loaded_by_data_parallel(states: States) -> list[bool]:
    torch.cuda.set_rng_state_all(states)
    return list(map(torch.equal, states, torch.cuda.get_rng_state_all()))


def on_rank(theirs: States) -> Any:
    import dp2ddp_runtime as ddp
    from dp2ddp_runtime.ranks import file_sync

    ddp.setup(seed=3)
    net = ddp.wrap_model(nn.Dropout(0.5))
    drawn(net)
    states = torch.cuda.get_rng_state_all()
    first = drawn(net)
    torch.cuda.random.set_rng_state_all(iter(states))
    again = drawn(net)
    torch.cuda.set_rng_state_all(theirs)
    found = torch.cuda.get_rng_state_all()
    script = torch.rand(3, device="cuda").tolist()
    torch.cuda.set_rng_state_all(states)
    torch.cuda.set_rng_state_all(theirs[:1])
    of_one_gpu = torch.cuda.get_rng_state_all()
    with file_sync.not_together("main"):
        alone = len(torch.cuda.get_rng_state_all())
    return states, first, again, found, script, of_one_gpu, alone


def after(states: States) -> list[float]:
    torch.cuda.set_rng_state_all(states)
    return torch.rand(3, device="cuda").tolist()  # type: ignore[no-any-return]


def same(ones: States, others: States) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def test_states_of_all_gpus_carry_over(unused_port: str) -> None:
    theirs = call(saved_by_data_parallel)
    assert len(theirs) == 2
    assert not torch.equal(*theirs)
    at = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port}
    both = call(on_rank, theirs, ranks=2, PYTHONHASHSEED="0", **at)
    (states, first, again, found, script, of_one_gpu, alone), other = both
    assert not torch.equal(*states)
    for mine, of_rank_1 in ((states, other[0]), (found, other[3]), (of_one_gpu, other[5])):
        assert same(mine, of_rank_1)
    assert first == other[1]
    assert again == other[2]
    assert again[0] == first[0]
    assert again[1][32:] == first[1][32:]  # what rank 1 drops
    assert same(found, theirs)
    assert script == other[4] == call(after, theirs)
    assert same(of_one_gpu, [theirs[0], states[1]])  # as on two GPUs
    assert alone == 1
    assert call(loaded_by_data_parallel, states) == [True, True]
