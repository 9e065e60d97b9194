"""Whose hands: ranks that differ in what they open, own files, children, and what is written before `setup`."""

from __future__ import annotations

from pathlib import Path

from forks import WORKERS_OF_FORKS
from starts import Warm, write


def test_ranks_that_differ_in_what_they_open_or_remove_go_on(warm: Warm, tmp_path: Path) -> None:
    """Where rank 0 stands in a collective it has done all that lies before it."""
    body = """
        ddp.setup(timeout=60)
        ddp.wrap_model(torch.nn.Linear(1, 1))
        seen = []
        if ddp.rank() == 1:
            seen.append(os.path.exists("none"))
            with open("by 1", "w") as file:
                file.write("x")
            seen.append(open(__file__).read()[:6])
        print(ddp.gather(seen))
        with open("by 0", "w") as file:
            file.write("x")
        print(sorted(name for name in os.listdir(".") if name.startswith("by")))
        if ddp.is_main():
            os.remove("by 0")
        print(sum(ddp.gather(1)), os.path.exists("by 0"))
        """
    done = warm.start(write(tmp_path, body), cwd=tmp_path, forked=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[[], [False, 'import']]", "['by 0']", "2 False"]


def test_own_files_are_each_ranks(warm: Warm, tmp_path: Path) -> None:
    body = """
        import multiprocessing, os, tempfile
        from torch.utils.data import DataLoader
        ddp.setup()
        ddp.wrap_model(torch.nn.Linear(1, 1))
        with ddp.own_files():
            with open(f"own{ddp.rank()}", "w") as file:
                file.write("x")
        def child():
            with open(f"child{ddp.rank()}", "w") as file:
                file.write("x")
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        class Cached:
            def __len__(self):
                return 4
            def __getitem__(self, index):
                path = f"sample{index}"
                with open(path, "w") as file:
                    file.write(str(ddp.rank()))
                    assert not os.path.exists(path) or os.path.getsize(path)  # what another rank finds is whole
                return torch.ones(2)
        net = ddp.wrap_model(torch.nn.Linear(2, 1))
        for workers in (0, 1):
            for x in ddp.shard_loader(DataLoader(Cached(), 4, num_workers=workers)):
                net(x).sum().backward()
        ddp.barrier()
        """
    done = warm.start(write(tmp_path, body), cwd=tmp_path, forked=WORKERS_OF_FORKS)
    assert (done.returncode, done.stderr) == (0, "")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"own0", "own1", "child0"} <= names
    assert "child1" not in names
    assert {f"sample{index}" for index in range(4)} <= names


BEFORE_THE_WRAP = (Path(__file__).parent / "before_the_wrap.py").read_text()


def test_what_is_done_before_the_wrap_is_done_once_and_seen_by_all(warm: Warm, tmp_path: Path) -> None:
    """An archive that is removed, a file that is written over, a folder named by the clock, a file that stays open."""
    (tmp_path / "more.txt").write_text("zero ")
    done = warm.start(write(tmp_path, BEFORE_THE_WRAP), cwd=tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert '"[2]", 0, 3, 6, 3, true, "before\\nafter\\nmore\\n", 3, 0, "x\\n", false, []' in first
    assert (tmp_path / "prog").read_text() == "x\n"
    assert (tmp_path / "more.txt").read_text() == "zero one two"


def test_a_large_file_that_is_removed_before_the_wrap_is_missed_loudly(warm: Warm, tmp_path: Path) -> None:
    body = """
        ddp.setup()
        with open("large", "w") as file:
            file.truncate(65 << 20)
        print(open("large").read(1) == chr(0))
        os.remove("large")
        ddp.wrap_model(torch.nn.Linear(1, 1))
        """
    done = warm.start(write(tmp_path, body), cwd=tmp_path, forked=True)
    assert (done.returncode, done.stdout) == (1, "True\n")
    assert "dp2ddp: rank 1 failed:\n" in done.stderr
    assert "rank 0 has removed or overwritten it since, before the first wrap: start again" in done.stderr
