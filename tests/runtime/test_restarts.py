"""Ranks that torchrun starts again, and those beside a script's own DDP."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import torch
from starts import TORCHRUN, Warm, write


def test_a_training_that_was_started_again_comes_out_the_same(warm: Warm, tmp_path: Path) -> None:
    """By the script's own `--resume`, after a rank was killed in the middle of an epoch."""
    body = """
        import signal
        from torch.utils.data import DataLoader, TensorDataset
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        ddp.setup(timeout=60)
        torch.set_num_threads(1)  # as torchrun has it; sums depend on that
        dies = is_first and ddp.rank() == 1
        torch.manual_seed(0)
        samples = TensorDataset(torch.randn(24, 3), torch.randn(24, 1))
        net = ddp.wrap_model(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        loader = ddp.shard_loader(DataLoader(samples, batch_size=4, shuffle=True))
        start = 0
        if os.path.isfile("ckpt.pt"):  # --resume
            found = ddp.load("ckpt.pt")
            start = found["epoch"]
            net.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
        for epoch in range(start, 4):
            torch.manual_seed(epoch)
            for step, (x, y) in enumerate(loader):
                if dies and (epoch, step) == (2, 3):
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(net(x), y)
                loss.backward()
                optimizer.step()
            state = {"epoch": epoch + 1, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
            ddp.save(state, "ckpt.pt")
            print("epoch", epoch, loss.item(), flush=True)
        """
    script = write(tmp_path, body)
    folders = [tmp_path / "whole", tmp_path / "again"]
    for folder in folders:
        folder.mkdir()
    whole = warm.start(script, cwd=folders[0], forked=True)
    env = {"PYTHONHASHSEED": "0"}
    again = warm.start(*TORCHRUN, "--max-restarts=1", script, nproc=None, env=env, cwd=folders[1], forked=True)
    assert (whole.returncode, again.returncode) == (0, 0), again.stderr
    assert "failed (exitcode: " in again.stderr
    assert again.stdout == whole.stdout
    assert [line.split()[1] for line in again.stdout.splitlines()] == ["0", "1", "2", "3"]
    one, other = (torch.load(folder / "ckpt.pt") for folder in folders)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert [os.listdir(folder) for folder in folders] == [["ckpt.pt"]] * 2


BESIDE_DDP = """
    import torch.distributed as dist
    by_itself = "--own" in sys.argv or "RANK" in os.environ
    if by_itself:
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        dist.init_process_group("gloo", init_method="file://" + sys.argv[-1], rank=rank, world_size=size)
    ddp.setup(beside_ddp=True)
    model = None if by_itself else ddp.wrap_model(torch.nn.Linear(2, 1))
    own = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
    print("world", (ddp.rank(), ddp.world_size()), "group", own, "model", model is not None, flush=True)
    """


def test_beside_the_scripts_own_ddp(warm: Warm, tmp_path: Path) -> None:
    path = write(tmp_path, BESIDE_DDP)
    plain = warm.start(path, tmp_path / "a", forked=True)
    assert plain.stdout.splitlines() == ["world (0, 2) group None model True"], plain.stderr
    own = warm.start(path, "--own", tmp_path / "b")
    assert own.stdout.splitlines() == ["world (0, 1) group (0, 1) model False"], own.stderr
    with ExitStack() as stack:
        size = {"WORLD_SIZE": "2"}
        ranks = [
            stack.enter_context(
                warm.started(path, tmp_path / "c", nproc=None, env={**size, "RANK": r, "LOCAL_RANK": r})
            )
            for r in ("0", "1")
        ]
        done = [rank.wait() for rank in ranks]
    expected = [f"world (0, 1) group ({rank}, 2) model False\n" for rank in range(2)]
    assert [rank.stdout for rank in done] == expected, [rank.stderr for rank in done]
