"""`setup`, with real processes: what a launcher, a signal and a failing rank lead to.

What a start that goes well shows is in `test_start`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forks import WORKERS_OF_FORKS
from starts import START, Warm, start, write


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


def test_an_error_that_only_a_thread_or_a_child_shows_does_not_end_the_rank(warm: Warm, tmp_path: Path) -> None:
    """As multiprocessing's resource sharer does, in a thread of a rank or of its loader's worker."""
    body = """
        import multiprocessing, threading
        def shows(what):
            try:
                raise ConnectionResetError(what)
            except OSError:
                sys.excepthook(*sys.exc_info())
        def in_thread(what):
            thread = threading.Thread(target=shows, args=(what,))
            thread.start()
            thread.join()
        def orphan(parent):
            while os.getppid() == parent:
                time.sleep(0.01)
            in_thread("told by an orphan")
        ddp.setup()
        in_thread("told by a thread")
        context = multiprocessing.get_context("fork")
        child = context.Process(target=in_thread, args=("told by a child",))
        child.start()
        child.join()
        print("goes on", child.exitcode, flush=True)
        context.Process(target=orphan, args=(os.getpid(),), daemon=True).start()
        ddp.barrier()
        os._exit(0)
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert (done.returncode, done.stdout) == (0, "goes on 0\n"), done.stderr
    assert (done.stderr.count("told by a thread"), done.stderr.count("told by a child")) == (1, 1), done.stderr
    assert not any(each in done.stderr for each in ("orphan", "failed")), done.stderr


def test_a_script_that_is_no_file_cannot_be_started_again() -> None:
    done = start("-", input=START + "ddp.setup()\n")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "save it as a file" in done.stderr


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


def test_a_file_that_is_missing_is_told_by_rank_0_at_the_script_s_own_line(warm: Warm, tmp_path: Path) -> None:
    """As the original tells it: how the runtime asks the disk isn't shown."""
    body = """
        from pathlib import Path
        ddp.setup()
        time.sleep(0.1 * (1 - ddp.rank()))
        Path("missing.txt").read_text()
        """
    done = warm.start(write(tmp_path, body), forked=True)
    assert done.stderr.startswith("dp2ddp: rank 0 of 2 failed:\n"), done.stderr
    assert 'Path("missing.txt").read_text()' in done.stderr
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'missing.txt'" in done.stderr
    assert "dp2ddp_runtime" not in done.stderr
