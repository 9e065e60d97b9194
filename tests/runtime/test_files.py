"""Files: whichever rank is late, what scripts read, list and write is what one process does."""

from __future__ import annotations

import configparser
import csv
import fileinput
import gc
import glob
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.model.wrapped import wrap_model
from dp2ddp_runtime.rank_zero.checkpoint import load, save
from dp2ddp_runtime.rank_zero.main_only import main_only

_LATE = 0.03  # seconds

Late = Callable[[], None]


def lists(late: Late) -> Any:
    """The way that a path takes doesn't matter."""
    os.makedirs("out")
    for number in range(3):
        late()
        Path(f"out/{number}.bin").write_bytes(bytes(200_000))
    late()
    files = sorted(glob.glob("out/*.bin"))
    return [(name, len(open(name, "rb").read())) for name in files]


def destroyed(late: Late) -> Any:
    """What is removed, moved or overwritten may still be read by a rank that is late."""
    read = []
    for name in ("log", "log"):
        if not os.path.isfile(name):
            os.mknod(name)
    for number in range(3):
        with open("state.json", "w") as file:
            json.dump({"epoch": number}, file)
        late()
        read.append(json.load(open("state.json")))  # noqa: SIM115
        late()
        os.replace("state.json", f"{number}.json")
        late()
        os.makedirs("images", exist_ok=True)
        np.save("images/a.npy", np.full(3, number))
        late()
        read.append(np.load("images/a.npy").tolist())
        late()
        shutil.rmtree("images")
    for remove in (os.system, lambda command: subprocess.run(command, shell=True, check=True)):
        Path("weights").write_text("x")
        late()
        read.append(open("weights").read())  # noqa: SIM115
        remove("rm weights")
    return read, sorted(os.listdir("."))


def cached(late: Late) -> Any:
    """A question decides for all ranks, wherever it stands."""
    seen = []
    for name in ("a", "b", "a"):
        late()
        if os.path.exists(name):
            seen.append("there")
        else:
            late()
            pickle.dump([name] * 50_000, open(name, "wb"))  # noqa: SIM115
        late()
        seen.append(len(pickle.load(open(name, "rb"))))  # noqa: SIM115
    late()
    try:
        seen.append(open("c").read())  # noqa: SIM115
    except FileNotFoundError:
        late()
        Path("c").write_text("built")
    return seen, os.path.getsize("c"), Path("c").is_file(), os.path.isdir("a")


def listed_in_loops(late: Late) -> Any:
    """Inner listings, too, are rank 0's."""
    for name in "ab":
        os.mkdir(name)
        for number in range(3):
            Path(name, f"{number}").touch()
    late()
    found = [(folder, os.listdir(folder)) for folder in os.listdir(".")]
    late()
    walked = [(at, folders, files) for at, folders, files in os.walk(".")]
    late()
    entries = [(each.name, each.is_dir(), each.stat().st_size) for each in os.scandir("a")]
    return found, walked, entries, list(Path("b").iterdir())


def fetched_archive(late: Late) -> Any:
    """As torchvision's data sets have it: check, fetch, unpack, read."""
    with tarfile.open("new.tar.gz", "w:gz") as tar:
        for name in ("x", "y"):
            data = tarfile.TarInfo(name)
            data.size = 3
            tar.addfile(data, io.BytesIO(b"abc"))
    late()
    if not os.path.isdir("data"):
        os.makedirs("data")
        shutil.move("new.tar.gz", "data/all.tar.gz")
        late()
        with tarfile.open("data/all.tar.gz", "r:gz") as tar:
            tar.extractall("data", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    late()
    with zipfile.ZipFile("z.zip", "w") as zipped:
        zipped.writestr("m", "zipped")
    late()
    with zipfile.ZipFile("z.zip") as zipped:
        zipped.extractall("unzipped")
    return sorted(os.listdir("data")), Path("data/x").read_text(), Path("unzipped/m").read_text()


def downloaded_and_moved(late: Late) -> Any:
    """By a temporary file of the rank's own, in the very folder."""
    with tempfile.NamedTemporaryFile(dir=".", delete=False, mode="w") as part:
        part.write("downloaded")
    late()
    os.replace(part.name, "final")
    late()
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "own")
        own.write_text(str(world.rank()))
        assert own.read_text() == str(world.rank())
    return Path("final").read_text(), os.path.exists(part.name)


def failing(late: Late) -> Any:
    """Rank 0's error is every rank's, and the same handler catches it."""
    seen = []
    for make in (
        lambda: open("none"),  # noqa: SIM115
        lambda: os.mkdir("no/folder"),
        lambda: os.remove("none"),
        lambda: save({}, "no/folder/net.pt"),
        lambda: main_only(json.loads)("{"),
    ):
        late()
        try:
            make()
        except OSError as error:
            seen.append((type(error).__name__, getattr(error, "errno", None), getattr(error, "filename", None)))
        except (RuntimeError, ValueError) as error:
            name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
            seen.append((name, str(error).replace(os.getcwd(), "").rpartition(": ")[2]))
    late()
    os.mkdir("a")
    late()
    try:
        os.mkdir("a")
    except FileExistsError:
        seen.append(("there",))
    return seen


def rotated(late: Late) -> Any:
    """Checkpoints that are rotated, and resumed from."""
    kept = []
    for epoch in range(4):
        late()
        save({"epoch": epoch, "w": torch.full((1000,), float(epoch))}, f"net{epoch}.pt")
        late()
        torch.save({"epoch": epoch}, "last.pt")
        kept.append(f"net{epoch}.pt")
        if len(kept) > 2:
            late()
            os.remove(kept.pop(0))
        newest = max(glob.glob("net*.pt"), key=os.path.getmtime)
        late()
        assert load(newest)["epoch"] == load("last.pt")["epoch"] == epoch
    return sorted(os.listdir("."))


def handles(late: Late) -> Any:
    """What is done with a handle works, whoever has the file."""
    with open("log.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["epoch", "loss"])
        place = file.tell()
        file.flush()
        os.fsync(file.fileno())
        names = file.name, file.mode, file.closed
    late()
    for number in range(5):
        with open("log.csv", "a") as file:
            file.write(f"{number},{number / 2}\n")
        late()
    with open("both", "w+b") as file:
        np.save(file, np.arange(4))
        file.seek(0)
        back = np.load(file).tolist()
    late()
    with open("both", "r+b") as file:
        file.seek(0)
        start = file.read(6)
    gc.disable()
    json.dump({"a": 1}, open("a.json", "w"))  # noqa: SIM115 - closed by its last reference, as scripts do
    gc.enable()
    late()
    config = configparser.ConfigParser()
    Path("c.ini").write_text("[a]\nb = 1\n")
    late()
    return place, names, back, start, Path("log.csv").read_text(), config.read(["c.ini"]), config.sections()


def commands(late: Late) -> Any:
    """What is run is run once, and told."""
    codes: list[Any] = [os.system("echo a >> lines; exit 3"), subprocess.call("echo b >> lines", shell=True)]
    late()
    told = subprocess.check_output(["cat", "lines"])
    late()
    done = subprocess.run("echo c >> lines; cat lines", shell=True, capture_output=True, text=True)
    late()
    started = subprocess.Popen("cat >> lines", shell=True, stdin=subprocess.PIPE)
    started.communicate(b"d\n")
    late()
    error = ""
    try:
        subprocess.run(["false"], check=True)
    except subprocess.CalledProcessError as failed:
        error = str(failed)
    late()
    with os.popen("echo e >> lines; tail -1 lines") as said:
        codes += [said.read(), said.closed]
    codes.append(os.popen("exit 2").close())
    server = os.popen("echo $$; exec sleep 600")  # which doesn't end by itself
    os.system(f"kill {server.readline()}")
    lines = list(os.popen("echo 1; echo 2"))
    with os.popen("cat >> lines", "w") as asked:
        asked.write("f\n")
    late()
    codes.append(Path("lines").read_text())
    return codes, lines, told, done.stdout, done.returncode, started.returncode, error, main_only(len)("abc") and "done"


class Model:
    """What nobody listed: a library that reads and writes under its own names."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def from_pretrained(cls, folder: str) -> Model:
        return cls("".join(line for line in fileinput.input(sorted(glob.glob(f"{folder}/*.json")))))

    def save_vocabulary(self, folder: str, late: Late) -> str:
        name = os.path.join(folder, "vocabulary.json") if os.path.isdir(folder) else folder
        late()
        with open(name, "w") as file:
            file.write(self.text)
        return name


class Keeper:
    """Keeps the last checkpoints: by temporary files that take their places."""

    def __init__(self, folder: str, late: Late) -> None:
        self.folder, self.late, self.kept = Path(folder), late, list[Path]()
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(f"{folder} isn't empty")
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, number: int) -> None:
        with tempfile.NamedTemporaryFile(delete=False, dir=self.folder) as part:
            torch.save({"number": number}, part)
        self.late()
        os.chmod(part.name, 0o644)
        os.rename(part.name, self.folder / f"{number}.pth")
        self.kept.append(self.folder / f"{number}.pth")
        if len(self.kept) > 2:
            self.late()
            self.kept.pop(0).unlink()


class Annotations:
    def __init__(self, *paths: str) -> None:
        self.found = [json.loads(os.read(descriptor, 1000)) for descriptor in map(self._opened, paths)]

    @staticmethod
    def _opened(path: str) -> int:
        return os.open(path, os.O_RDONLY)


def libraries(late: Late) -> Any:
    """Readers and writers that are on nobody's list, right behind each other."""
    read: list[Any] = []
    os.makedirs("results")
    late()
    read.append(Model("a cat").save_vocabulary("results", late))
    keeper = Keeper("kept/here", late)
    for epoch in range(3):
        json.dump({"epoch": epoch}, open("results/all.json", "w"))  # noqa: SIM115
        late()
        read.append(Annotations("results/all.json").found)
        ElementTree.ElementTree(ElementTree.Element("a", epoch=str(epoch))).write("a.xml")
        late()
        read.append(ElementTree.parse("a.xml").getroot().attrib)
        config = configparser.ConfigParser()
        config["a"] = {"b": str(epoch)}
        with open("a.ini", "w") as file:
            config.write(file)
        late()
        again = configparser.ConfigParser()
        read.append([again.read("a.ini"), again["a"]["b"]])
        keeper(epoch)
        late()
        read.append([torch.load(each)["number"] for each in keeper.kept])
        read.append(sorted(os.listdir("kept/here")))
    late()
    read.append(Model.from_pretrained("results").text)
    names = [f"{number}.json" for number in range(20)]
    for name in names:
        Path(name).write_text(name[0])
    late()
    read.append(Annotations(*names).found)
    return read


def in_threads(late: Late) -> Any:
    """Many at once, in any order."""

    def write(number: int) -> int:
        Path(f"{number}.txt").write_text("x" * number)
        return os.path.getsize(f"{number}.txt")

    late()
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(write, range(12)))


class Animation:
    """What is called back while it writes, as matplotlib's is: each frame is drawn by the model."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw = draw

    def save(self, path: str) -> None:
        with open(path, "w") as file:
            for number in range(3):
                file.write(f"{self.draw(number)}\n")


@torch.no_grad()
def filmed(late: Late) -> str:
    """The frames are drawn on all ranks, and written by rank 0."""
    net = wrap_model(torch.nn.Linear(2, 1))
    net.load_state_dict({key: torch.ones_like(value) for key, value in net.state_dict().items()})

    def draw(number: int) -> float:
        late()
        return net(torch.full((6, 2), float(number))).sum().item()

    Animation(draw).save("film.txt")
    late()
    return Path("film.txt").read_text()


SHAPES = [
    lists,
    destroyed,
    cached,
    listed_in_loops,
    fetched_archive,
    downloaded_and_moved,
    failing,
    rotated,
    handles,
    commands,
    libraries,
    in_threads,
    filmed,
]


def _run(shape: Callable[[Late], Any], folder: Path, late_rank: int | None) -> Any:
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    random.seed(world.rank())

    def late() -> None:
        if world.world_size() > 1 and (late_rank == world.rank() or (late_rank is None and random.random() < 0.5)):
            time.sleep(_LATE * random.random())

    return shape(late)


def _content(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".pt", ".zip", ".gz"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("late", [0, 1, None], ids=["rank 0 is late", "rank 1 is late", "any is late"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_whichever_rank_is_late(ranks: Any, tmp_path: Path, shape: Any, late: int | None) -> None:
    wanted = ranks(1, _run, shape, tmp_path / "one", late)
    found = ranks(2 if late is not None else 3, _run, shape, tmp_path / "ranks", late, timeout=60)
    assert found == wanted * len(found)
    assert _content(tmp_path / "ranks") == _content(tmp_path / "one")
