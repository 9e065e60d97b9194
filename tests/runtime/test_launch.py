"""`setup`, with real processes: what a launcher, a signal and a failing rank lead to; and which devices are taken.

What a start that goes well shows is in `test_start`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.launch import devices, launcher
from dp2ddp_runtime.model.wrapped import wrap_model
from forks import WORKERS_OF_FORKS
from starts import START, TORCHRUN, Warm, start, write
from torch import nn


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_end(pids: list[int], seconds: float = 5) -> list[int]:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize(
    ("rest", "at_once"),
    [
        ("ddp.rank()", True),  # somebody else's training, which takes something from here
        ("if len(sys.argv) > 1: ddp.setup()", False),
        ("ddp.setup(beside_ddp=True)", True),
    ],
)
def test_what_a_launchers_rank_prints_is_shown_unless_it_joins(
    warm: Warm, tmp_path: Path, rest: str, at_once: bool
) -> None:
    """Rank 1's lines, in their order; and at once, where it is known that it prints like all others."""
    script = write(
        tmp_path,
        f"""
        print("before", flush=True)
        os.system("echo from a child")
        {rest}
        if os.fork() == 0:
            sys.exit()
        os.wait()
        print("after", os.stat(1).st_ino == os.stat(os.environ["STDOUT"]).st_ino, flush=True)
        """,
    )
    done = warm.start(script, nproc=None, env={"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    assert done.stdout.splitlines() == ["before", "from a child", f"after {at_once}"], done.stderr


@pytest.mark.parametrize("call", ["broadcast(os.getpid())", "gather([1])"])
def test_a_collective_before_setup_is_an_error_where_there_are_ranks(warm: Warm, tmp_path: Path, call: str) -> None:
    """Each rank would have its own value."""
    script = write(tmp_path, f"value = ddp.{call}\nddp.broadcast(1)\nddp.setup()\nddp.{call}\nprint('through')")
    done = warm.start(script, forked=True)
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("dp2ddp:")]
    line = script.read_text().splitlines().index(f"value = ddp.{call}") + 1
    kind = call.partition("(")[0]
    assert f"ddp.{kind} at train.py:{line} ran before ddp.setup() at train.py:{line + 2}" in told
    assert done.returncode == 1
    assert "through" not in done.stdout
    alone = warm.start(script, nproc=1)
    assert (alone.returncode, alone.stdout) == (0, "through\n"), alone.stderr


@pytest.mark.parametrize(
    ("ends", "code", "told"),
    [
        ("if ddp.rank() == 1: raise ValueError('only here')", 1, "rank 1 of 2 failed:"),
        ("if ddp.rank() == 1: sys.exit(3)", 3, "rank 1 of 2 ended with exit code 3,"),
        ("if ddp.rank() == 1: sys.exit('no data here')", 1, ""),
        ("sys.exit('no data here')", 1, ""),
        ("if ddp.rank() == 1: os.kill(os.getpid(), 9)", 128 + 9, "rank 1 of 2 was ended by signal 9 (Killed; is the"),
    ],
)
def test_a_rank_s_end_is_told_once(warm: Warm, tmp_path: Path, ends: str, code: int, told: str) -> None:
    begin = time.monotonic()
    done = warm.start(write(tmp_path, f"ddp.setup()\n{ends}\nddp.barrier()\n"), forked=True)
    assert time.monotonic() - begin < 30
    assert done.returncode == code, done.stderr
    assert done.stderr.count("of 2") == (told != ""), done.stderr
    assert told in done.stderr
    raises = "raise" in ends
    assert [done.stderr.count(text) for text in ("Traceback", "ValueError: only here")] == [raises, raises]
    assert done.stderr.count("no data here\n") == ("no data" in ends)


@pytest.mark.skipif(torch.__version__ < "2.4", reason="torch 2.1 hangs now and then where a group is destroyed")
def test_exit_code_counts_however_long_the_rank_s_end_takes(warm: Warm, tmp_path: Path) -> None:
    """Rank 0 sees at once that it is alone: an error of its own, which the other rank is to be blamed for."""
    body = """
        import atexit
        atexit.register(time.sleep, 3)  # called after all that `setup` registers
        ddp.setup()
        if ddp.rank() == 1:
            __import__("dp2ddp_runtime.ranks.group", fromlist=["leave"]).leave()
            sys.exit(3)
        ddp.barrier()
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert (done.returncode, done.stderr) == (
        3,
        "dp2ddp: rank 1 of 2 ended with exit code 3, and not all of them did\n",
    )


def test_rank_of_a_launcher_that_is_gone_ends(warm: Warm, tmp_path: Path) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LAUNCHER": "1", "PORT": "1", "SECRET": ""}
    done = warm.start(write(tmp_path, "ddp.setup()\n"), env={"DP2DDP_PLACE": json.dumps(place)})
    assert (done.returncode, done.stderr) == (1, "dp2ddp: the process that started the ranks has ended\n")


def test_second_signal_ends_a_script_that_goes_on_after_the_first(warm: Warm, tmp_path: Path) -> None:
    body = """
        import signal
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        ddp.setup()
        ddp.barrier()
        while ddp.is_main():
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(1)
        time.sleep(100)
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_signals_end_the_whole_job(warm: Warm, tmp_path: Path, name: str) -> None:
    body = """
        from torch.utils.data import DataLoader
        ddp.setup()
        loader = iter(ddp.shard_loader(DataLoader(range(10**6), num_workers=1)))
        next(loader)
        with ddp.own_files():
            open(f"pid{ddp.rank()}.part", "w").write(f"{os.getpid()} {loader._workers[0].pid}")
            os.rename(f"pid{ddp.rank()}.part", f"pid{ddp.rank()}")
        time.sleep(100)
        """
    with warm.started(write(tmp_path, body), cwd=tmp_path, forked=WORKERS_OF_FORKS) as job:
        files = [tmp_path / "pid0", tmp_path / "pid1"]
        job.wait_for(*files)
        ranks, workers = zip(*(map(int, file.read_text().split()) for file in files))
        number = getattr(signal, name)
        job.process.send_signal(number)
        begin = time.monotonic()
        done = job.wait()
    assert time.monotonic() - begin < 10
    assert done.returncode == (-9 if name == "SIGKILL" else 128 + number)
    assert wait_for_end(list(ranks)) == []
    assert wait_for_end(list(workers), 12) == [], "torch looks every 5 seconds"
    assert done.stderr.count("KeyboardInterrupt\n") == (1 if name == "SIGINT" else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net")
def test_store_is_this_machines_and_nothing_in_it_is_run(warm: Warm, tmp_path: Path) -> None:
    """Whoever can connect can neither guess the names of the keys, nor have what is there unpickled."""
    body = """
        import json, pickle
        ddp.setup()
        class Payload:
            def __reduce__(self):
                return os.mkdir, ("executed",)
        def attack(*prefixes):
            address = "127.0.0.1", int(place["PORT"])
            store = torch.distributed.TCPStore(*address, None, False, wait_for_workers=False)
            for prefix in prefixes:
                store.set(prefix, pickle.dumps(Payload()).hex())
                store.add(prefix + "/told", 1)
        if ddp.is_main():
            place = json.loads(os.environ["DP2DDP_PLACE"])
            port, listens = f":{int(place['PORT']):04X}", "0A"
            lines = [line for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
            rows = [line.split() for line in lines]
            print([row[1] for row in rows if row[1].endswith(port) and row[3] == listens] == ["0100007F" + port])
        with ddp.main_first():
            if ddp.is_main():
                lines = [n for n, line in enumerate(open(__file__), 1) if line.endswith("ddp.main_first():\\n")]
                first, second = [f"first train.py:{n} 1/0" for n in lines]
                attack(first, place["SECRET"] + "/" + second)
        try:
            with ddp.main_first():
                time.sleep(0.5)
            print("went on", ddp.is_main())
        except json.JSONDecodeError:
            os.write(2, b"what the attacker told was read, and is no JSON")
        """
    done = warm.start(write(tmp_path, body), cwd=tmp_path, forked=True)
    assert done.stdout.splitlines() == ["True", "went on True"], done.stderr
    assert done.stderr == "what the attacker told was read, and is no JSON"
    assert not (tmp_path / "executed").exists()


def test_one_process_has_no_group_and_no_sockets(warm: Warm, tmp_path: Path) -> None:
    body = """
        import socket
        def refuse(*args, **kwargs):
            raise AssertionError("a socket")
        socket.socket = torch.distributed.TCPStore = refuse
        pid, before = os.getpid(), torch.get_rng_state()
        ddp.setup(device_ids=[0, 1])
        assert torch.equal(torch.get_rng_state(), before)
        assert not torch.distributed.is_initialized()
        assert (ddp.rank(), ddp.world_size(), ddp.is_main(), str(ddp.device())) == (0, 1, True, "cpu")
        with ddp.main_first():
            ddp.barrier()
        print("alone")
        """
    script = write(tmp_path, body)
    for env in ({}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, {"DP2DDP_NPROC": "1"}):
        done = warm.start(script, nproc=None, env=env)
        assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr


def test_the_rank_that_could_not_load_a_batch_tells_of_it(warm: Warm, tmp_path: Path) -> None:
    """All raise its error, and it is the last one to come to its end."""
    body = """
        from torch.utils.data import DataLoader
        class Bad:
            def __len__(self): return 4
            def __getitem__(self, i):
                if i == 3: raise ValueError("a bad sample")
                return torch.ones(1)
        ddp.setup()
        ends = sys.excepthook
        def late(*error):
            time.sleep(2 * ddp.rank())
            ends(*error)
        sys.excepthook = late
        list(ddp.shard_loader(DataLoader(Bad(), 4, num_workers=1)))
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert done.returncode == 1
    assert done.stderr.startswith("dp2ddp: rank 1 of 2 failed:\n"), done.stderr
    assert "a bad sample" in done.stderr


def test_torchrun_starts_the_ranks_again(warm: Warm, tmp_path: Path) -> None:
    """On each attempt another rank fails: what the ones before have left in torchrun's store misleads nobody."""
    body = """
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        ddp.setup(timeout=60)
        for step in range(20):
            total = sum(ddp.gather(torch.ones(3)))
            if (step, ddp.rank()) == (10, 1 - attempt):
                raise ValueError(f"failed in attempt {attempt}")
        with ddp.main_first():
            print("attempt", attempt, total.tolist())
        """
    given = (*TORCHRUN, "--max-restarts=2", write(tmp_path, body))
    done = warm.start(*given, nproc=None, env={"PYTHONHASHSEED": "0"}, forked=True)
    assert (done.returncode, done.stdout) == (0, "attempt 2 [2.0, 2.0, 2.0]\n"), done.stderr
    assert "hashes strings" not in done.stderr
    errors = [line.partition("ValueError: ")[2] for line in done.stderr.splitlines() if "ValueError: " in line]
    assert errors == ["failed in attempt 0", "failed in attempt 1"]


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


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None),
        ([], []),
        ("", []),
        ([0, 1], [0, 1]),
        ((2, "cuda:3"), [2, 3]),
        (range(3), [0, 1, 2]),
        ("2,3", None),
        ("0", None),
        ("cuda:1", [1]),
        (1, [1]),
        (torch.device("cuda:1"), [1]),
        ([torch.device("cuda"), 0, "1"], [0, 1]),
        ([-1], [0]),
    ],
)
def test_device_ids(given: Any, wanted: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert devices.parse_device_ids(devices.make_visible(given)) == wanted
    assert os.environ["CUDA_VISIBLE_DEVICES"] == (given if given in ("2,3", "0") else "5")


@pytest.mark.parametrize("given", [[-2], "cpu", "two", [1.5, None], "cuda:x"])
def test_device_ids_that_are_none(given: Any) -> None:
    with pytest.raises(SystemExit, match="device_ids must name CUDA devices"):
        devices.parse_device_ids(given)


def test_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DP2DDP_NPROC", raising=False)
    monkeypatch.setenv("DP2DDP_DEVICE", "cpu")
    assert devices.process_count([0, 1]) == 1
    monkeypatch.delenv("DP2DDP_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices.process_count(None) == 3
    assert devices.process_count([]) == 1, "a script's way to say CPU"
    assert devices.process_count([2, 0]) == 2
    with pytest.raises(SystemExit, match="asks for cuda:7, cuda:8, but only 3"):
        devices.process_count([0, 7, 8])
    monkeypatch.setenv("DP2DDP_NPROC", "5")
    assert devices.process_count([0]) == 5
    for bad in ("-1", "two"):
        monkeypatch.setenv("DP2DDP_NPROC", bad)
        with pytest.raises(SystemExit, match="DP2DDP_NPROC must be a number"):
            devices.process_count(None)


def test_gpus_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that the environment has for them, UUIDs too; what a rank counts is what the original counts."""
    assert devices.gpu_variables(None, 2) == [{}, {}], "on the CPU"
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def gpus(ids: list[int] | None, ranks: int, count: int) -> list[str]:
        given = devices.gpu_variables(ids, ranks)
        assert {each["DP2DDP_GPUS"] for each in given} == {str(count)}
        assert [each["CUDA_VISIBLE_DEVICES"] for each in given] == [each["DP2DDP_GPU"] for each in given]
        return [each["DP2DDP_GPU"] for each in given]

    assert gpus([2, 1], 2, 3) == ["2", "1"]
    assert gpus(None, 3, 3) == ["0", "1", "2"]
    assert gpus(None, 2, 2) == ["0", "1"]
    assert gpus([2], 2, 3) == ["2", "0"], "torchrun started more ranks than there are device_ids"
    assert gpus([1], 5, 3) == ["1", "0", "2", "1", "0"], "more ranks than devices share them"
    assert gpus([5, 2], 2, 3) == ["2", "0"], "a launcher shows its ranks other devices than the script names"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, GPU-1a,GPU-2b,9")  # CUDA stops at what it doesn't know
    assert gpus([2, 0], 2, 3) == ["GPU-2b", "7"]
    assert devices.gpu_variables([], 2) == [{}, {}]


def test_how_torch_asks_for_gpus_is_the_user_s_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    check, place = "PYTORCH_NVML_BASED_CUDA_CHECK", {"RANK": "1", "WORLD_SIZE": "2"}
    for given in ({**place, check: "0"}, {**place, check: "1"}, {}, {world.PLACE: json.dumps(place)}):
        monkeypatch.setattr(os, "environ", dict(given))
        devices.take_own()
        devices.ask_cuda()
        assert os.environ == given


def test_as_many_ranks_as_devices_at_the_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.World(world_size=1, ready=True, set_up_at="train.py:3")
    monkeypatch.setattr(world, "_world", place)
    monkeypatch.delenv("DP2DDP_NPROC", raising=False)
    devices.compare_wrap([0, 1])  # on the CPU nobody takes them
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for fits in (None, [], [0], 1):
        devices.compare_wrap(fits)
    place.world_size, place.local_world_size = 4, 2  # on each of two machines
    for fits in ([0, 1], [3, 1, 0, 2]):
        devices.compare_wrap(fits)
    place.world_size = place.local_world_size = 1
    message = r"names 2 device\(s\) at test_launch.py:\d+, but the ddp.setup\(\) at train.py:3 started 1 rank"
    with pytest.raises(RuntimeError, match=message):
        wrap_model(nn.Linear(1, 1), device_ids=[0, 1])
    monkeypatch.setenv("DP2DDP_NPROC", "1")
    devices.compare_wrap([0, 1])  # as the user wants it
    monkeypatch.delenv("DP2DDP_NPROC")
    place.set_up_at = ""  # in a rank's child
    devices.compare_wrap([0, 1])


def test_other_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nn.DataParallel` does, one of them trains the model as it is; more aren't taken for the CPU."""
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    monkeypatch.delenv("DP2DDP_NPROC", raising=False)
    count = 1
    kind = SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: torch.device("xpu"), device_count=lambda: count
    )
    monkeypatch.setattr(torch, "accelerator", kind, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (devices.process_count(None), str(devices.choose_device(None, world.World()))) == (1, "xpu")
    assert str(world.device()) == "xpu"
    with pytest.raises(SystemExit, match="not on xpu"):
        devices.choose_device(None, world.World(0, 0, 2, 2))
    count = 2
    with pytest.raises(SystemExit, match="not on xpu"):
        devices.choose_device(None, world.World())
    monkeypatch.setenv("DP2DDP_DEVICE", "cpu")
    assert str(devices.choose_device(None, world.World(0, 0, 2, 2))) == "cpu"


@pytest.mark.parametrize(
    ("ranks", "gpus", "backend"),
    [(2, "2", "nccl"), (2, "4", "nccl"), (2, None, "nccl"), (2, "1", "gloo"), (3, "2", "gloo")],
)
def test_ranks_that_share_a_gpu_use_gloo(
    monkeypatch: pytest.MonkeyPatch, ranks: int, gpus: str | None, backend: str
) -> None:
    """Where a launcher shows each rank one GPU (None), NCCL tells whether two of them are the same."""
    monkeypatch.setenv("DP2DDP_GPUS", gpus or "")
    if gpus is None:
        monkeypatch.delenv("DP2DDP_GPUS")
    place = world.World(world_size=ranks, local_world_size=ranks, device=torch.device("cuda", 0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert devices.choose_backend(place) == backend
    assert [f"{ranks} ranks share {gpus} GPU" in str(each.message) for each in told] == [True] * (backend == "gloo")


def test_a_script_that_is_no_file_cannot_be_started_again() -> None:
    done = start("-", input=START + "ddp.setup()\n")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "save it as a file" in done.stderr


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("RunMode.RUN", "hydra.run.dir='/start/a/it\\'s'"), ("RunMode.MULTIRUN", "hydra.sweep.dir='/m'")],
)
def test_the_ranks_get_the_folder_that_hydra_named(monkeypatch: pytest.MonkeyPatch, mode: str, expected: str) -> None:
    """It is named after the time: each rank would have its own, and not find what rank 0 writes."""
    values = SimpleNamespace(
        mode=mode,
        runtime=SimpleNamespace(cwd="/start"),
        run=SimpleNamespace(dir="a/it's"),
        sweep=SimpleNamespace(dir="/m"),
    )
    config = SimpleNamespace(initialized=lambda: True, get=lambda: values)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # of other tests in this process
    monkeypatch.setattr(launcher.sys, "orig_argv", ["python", "train.py", "lr=0.1"], raising=False)
    plain = launcher.command()
    monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", SimpleNamespace(HydraConfig=config))
    assert launcher.command() == [*plain, expected]


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


def test_before_setup_the_device_is_whichever_setup_will_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that is imported first keeps it: `device_ids` aren't known yet, nor the rank of a plain start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    assert world.device() == torch.device("cuda")
    assert world.device("cuda:0") == "cuda:0"  # a script's own distributed training
    assert world.device_count(8) == 8
    monkeypatch.setenv("WORLD_SIZE", "2")  # of machines, as some scripts have it
    assert world.device_count(8) == 8
    monkeypatch.setenv("DP2DDP_PLACE", json.dumps({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}))
    assert world.device() == world.device("cuda:0") == torch.device("cuda")
    assert world.device_count(8) == 2
    assert world.numbered_device() == torch.device("cuda", 3)


@pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")
def test_a_machine_that_has_next_to_nothing(warm: Warm, tmp_path: Path) -> None:
    """No IPv6, no name that resolves, no writable TMPDIR and no /dev/shm."""
    body = """
        import socket
        from torch.utils.data import DataLoader
        try:
            socket.getaddrinfo(socket.gethostname(), 80)
        except OSError:
            print("nameless")
        ddp.setup()
        net = ddp.wrap_model(torch.nn.Linear(1, 1))
        for batch in ddp.shard_loader(DataLoader(torch.ones(4, 1), batch_size=2)):
            net(batch).sum().backward()
        ddp.save(net.state_dict(), "net.pt")
        print("IPv6:", open("/proc/net/if_inet6").read().split() if os.path.exists("/proc/net/if_inet6") else [])
        """
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here")
    prepare = (
        "ip link set lo up && sysctl -qw net.ipv6.conf.all.disable_ipv6=1; hostname no-such-machine && "
        "mount -t tmpfs -o ro tmpfs /dev/shm"
    )
    script = write(tmp_path, body)
    done = warm.start(script, cwd=tmp_path, env={"TMPDIR": "/proc"}, unshared=prepare, forked=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["nameless", "IPv6: []"]
    assert sorted(os.listdir(tmp_path)) == ["net.pt", "train.py"]


def test_a_rank_that_exits_lets_rank_0_finish_what_it_writes(warm: Warm, tmp_path: Path) -> None:
    """Else the others' three seconds would end in the middle of it."""
    body = """
        ddp.setup()
        class Slow:
            def __reduce__(self):
                time.sleep(5)
                return str, ("saved",)
        ddp.barrier()
        ddp.save(Slow(), "net.pt")
        sys.exit(5)
        """
    done = warm.start(write(tmp_path, body), cwd=tmp_path, forked=True)
    assert (done.returncode, done.stderr) == (5, "")
    assert torch.load(tmp_path / "net.pt", weights_only=False) == "saved"
    assert sorted(os.listdir(tmp_path)) == ["net.pt", "train.py"]


def test_a_rank_that_exits_at_once_lets_the_others_hear_what_it_said(warm: Warm, tmp_path: Path) -> None:
    """`os._exit(0)` as a script's last line: a rank that is late still asks what rank 0's calls came to."""
    script = write(
        tmp_path,
        """
        import os, time
        ddp.setup(timeout=30)
        if ddp.rank() == 1:
            time.sleep(1)
        if not os.path.exists("log"):
            os.makedirs("log")
        open("log/a.txt", "w").write("a")

        print("saved", os.listdir("log"), flush=True)
        with ddp.own_files():
            open(f"own{ddp.rank()}", "w").close()
        os._exit(0)
        """,
    )
    done = warm.start(script, cwd=tmp_path, forked=True)
    assert (done.returncode, done.stdout) == (0, "saved ['a.txt']\n"), done.stderr
    assert (tmp_path / "own1").exists()
