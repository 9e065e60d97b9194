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


_PROGRAM = """
import sys
with open(sys.argv[1]) as given, open(sys.argv[2], "w") as made:
    made.write(given.read().upper())
print("done")
"""


def test_a_program_finds_the_temporary_files_that_it_is_given(warm: Warm, tmp_path: Path) -> None:
    """In a chosen folder they are rank 0's, by its name; elsewhere the other ranks get what the program wrote."""
    (tmp_path / "upper.py").write_text(_PROGRAM)
    body = """
        import subprocess, sys, tempfile
        from tempfile import NamedTemporaryFile, TemporaryDirectory, mkstemp
        ddp.setup()
        ddp.wrap_model(torch.nn.Linear(1, 1))
        os.mkdir("jar")
        late = lambda: time.sleep(0.3 * (ddp.rank() == 1))
        found = []
        given = NamedTemporaryFile(mode="w", delete=False, dir="jar")
        given.write("a cat")
        given.close()
        # Written by the program, read by the script (SPICE).
        wanted = NamedTemporaryFile(delete=False, dir="jar")
        wanted.close()
        late()
        subprocess.check_call([sys.executable, "upper.py", given.name, wanted.name], stdout=subprocess.DEVNULL)
        found.append(open(wanted.name).read())
        os.remove(wanted.name)
        os.remove(given.name)
        late()
        # In the temporary folder each rank has its own.
        with NamedTemporaryFile("w", suffix=".txt") as given, TemporaryDirectory() as folder:
            given.write("own")
            given.flush()
            late()
            os.system(f"{sys.executable} upper.py '{given.name}' '{folder}/out' > /dev/null")
            found.append(open(f"{folder}/out").read())
            said = subprocess.check_output([sys.executable, "upper.py", given.name, f"{folder}/out"], text=True)
            found.append(said)
        name = tempfile.mktemp(".txt")
        late()
        found.append(os.popen(f"{sys.executable} -c 'print(1)' > {name}; echo made").read() + open(name).read())
        os.remove(name)
        late()
        with NamedTemporaryFile("w+", dir="jar") as given:
            given.write("gone")
            given.seek(0)
            late()
            found += [given.read(), subprocess.check_output(["cat", given.name], text=True)]
        descriptor, name = mkstemp(dir="jar")
        os.close(descriptor)
        found.append(str(os.path.exists(name)))
        os.remove(name)
        NamedTemporaryFile(dir="jar")
        late()
        print(ddp.gather(" ".join(found)), os.listdir("jar"))
        """
    done = warm.start(write(tmp_path, body), cwd=tmp_path, forked=True)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = "A CAT OWN done\n made\n1\n gone gone True"
    assert done.stdout == f"{[wanted] * 2} []\n"


BEFORE_THE_WRAP = (Path(__file__).parent / "before_the_wrap.py").read_text()


def test_what_is_done_before_the_wrap_is_done_once_and_seen_by_all(warm: Warm, tmp_path: Path) -> None:
    """An archive that is removed, a file that is written over, a folder named by the clock, a file that stays open."""
    (tmp_path / "more.txt").write_text("zero ")
    done = warm.start(write(tmp_path, BEFORE_THE_WRAP), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert '"inner", [0], [1], [2], "[2]", 3, true, "before\\nafter\\nmore\\n", 3, 0, "x\\n", false, []' in first
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
    done = warm.start(write(tmp_path, body), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "True\n")
    assert "rank 0 has removed or overwritten it since, before the first wrap: start again" in done.stderr
