"""Several machines: agents of torchrun, each in a network namespace with its own loopback and address."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from dp2ddp_runtime import birth, start
from starts import Started, Warm, write

TRAIN = """
    import json, pathlib
    from dp2ddp_runtime import links
    links._PATIENCE = 2.0  # the machines have one name, so a rank looks for all others on its own one, in vain
    ddp.setup(seed=3, timeout=60)
    shared, own = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    net = ddp.wrap_model(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def step():
        optimizer.zero_grad()
        net(torch.randn(10, 4)).square().mean().backward()
        optimizer.step()
    for _ in range(5):
        step()
    ddp.save(net.state_dict(), shared / "net.pt")
    ddp.save({"rank": ddp.rank()}, own / "own.pt")
    loaded = ddp.load(shared / "net.pt")
    assert torch.equal(loaded["module.2.bias"], net.module[2].bias)
    with open(shared / "told", "a") as file:
        file.write(json.dumps([ddp.world_size(), [value.tolist() for value in loaded.values()]]))
    with ddp.own_files():
        (own / f"through {ddp.rank()}").touch()
    while len(sys.argv) > 3:
        step()
    """


class Machines:
    """Two machines that reach each other by their addresses, and by no names."""

    def __init__(self, folder: Path) -> None:
        self.names = [f"dp2ddp-{os.getpid()}-{number}" for number in range(3)]
        self.folder = folder
        hub = self.names[2]
        for name in self.names:
            _ip("netns", "add", name)
        _ip("-n", hub, "link", "add", "name", "hub0", "type", "bridge")
        _ip("-n", hub, "link", "set", "hub0", "up")
        for number, name in enumerate(self.names[:2]):
            _ip("-n", hub, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "set", f"to{number}", "master", "hub0", "up")
            _ip("-n", name, "addr", "add", f"10.231.0.{number + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
            (folder / f"machine{number}").mkdir()

    @contextmanager
    def torchrun(self, warm: Warm, script: Path) -> Iterator[list[Started]]:
        """As `docs/launching.md` has it, an agent on each machine, and two ranks."""
        env = {"PYTHONHASHSEED": "0", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        with ExitStack() as running:
            agents = []
            for number, name in enumerate(self.names[:2]):
                command = ["-m", "torch.distributed.run", "--nnodes=2"]
                command += ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.231.0.1:29500"]
                command += [f"--local-addr=10.231.0.{number + 1}", *(["--rdzv-conf=is_host=true"] * (number == 0))]
                command += [str(script), str(self.folder), str(self.folder / f"machine{number}"), "go on"]
                started = warm.started(*command, nproc=None, env=env, network=name, forked=True)
                agents.append(running.enter_context(started))
            yield agents

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` (iproute2)")
    trial = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    if trial.returncode or os.geteuid() != 0:
        pytest.skip("network namespaces are not permitted here")
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_two_machines_train_as_one_until_one_leaves(warm: Warm, machines: Machines, tmp_path: Path) -> None:
    """It is killed with its agent: all ranks end, there and on the other machine, which says so once."""
    with machines.torchrun(warm, write(tmp_path, TRAIN)) as (first, second):
        deadline = time.monotonic() + 200
        while len(list(tmp_path.glob("machine*/through*"))) < 4:
            ended = [agent.wait().stderr for agent in (first, second) if agent.process.poll() is not None]
            assert ended == []
            assert time.monotonic() < deadline
            time.sleep(0.1)
        one = tmp_path / "one"
        alone = warm.start(write(one, TRAIN), one, one, nproc=4, env={"OMP_NUM_THREADS": "1"}, forked=True)
        assert alone.returncode == 0, alone.stderr
        assert (tmp_path / "told").read_text() == (one / "told").read_text()
        found = [set(os.listdir(tmp_path / f"machine{number}")) for number in range(2)]
        assert found == [{"through 0", "through 1", "own.pt"}, {"through 2", "through 3"}]
        second.process.kill()
        begin = time.monotonic()
        done = first.wait(60)
        assert done.returncode == 1
        assert time.monotonic() - begin < 30, "torchrun itself takes some seconds"
        assert sum("of 4 failed" in line for line in done.stderr.splitlines()) == 1, done.stderr
        for name in machines.names[:-1]:
            left = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True).stdout
            assert left.split() == []


@pytest.mark.parametrize(
    ("nodes", "first"), [("n1", "n1"), ("n[001-004,17],m3", "n001"), ("gpu-a,gpu-b", "gpu-a"), ("x[3,5]", "x3")]
)
def test_ranks_meet_on_the_first_node(monkeypatch: pytest.MonkeyPatch, nodes: str, first: str) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT", birth.LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("JOB_ID", "71"), ("STEP_ID", "2"), ("STEP_NODELIST", nodes), ("PROCID", "3")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert start._launched() == {}, "a batch script is no task of a step"
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert start._launched() == {}
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    found = {name: start._launched()[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    assert found == {"MASTER_ADDR": first, "MASTER_PORT": "20712", "RANK": "3", "WORLD_SIZE": "4"}
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert start._launched()["MASTER_PORT"] == "29500"
