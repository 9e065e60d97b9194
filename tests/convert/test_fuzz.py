"""Programs that nobody thought of: no traceback, output that compiles, the same when converted again, in time."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp2ddp.convert import pipeline
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.errors import EditError
from dp2ddp.rules import Options


def _fuzz() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


fuzz = _fuzz()
SEEDS = fuzz.seeds()
FEW = settings(max_examples=60, deadline=None)


@FEW
@given(seed=st.integers(0, 10**6), number=st.integers(0, 10**6))
def test_programs_with_changes(seed: int, number: int) -> None:
    fuzz.check(fuzz.generated(number, seed, SEEDS), fuzz.options(number, seed))


@FEW
@given(text=st.text(st.characters(codec="utf-8"), max_size=200), number=st.integers(0, 10**6))
def test_any_text(text: str, number: int) -> None:
    fuzz.check(text, fuzz.options(number, 0))
    fuzz.check(f"{text}\n{fuzz.WRAP}", fuzz.options(number, 0))


@pytest.fixture(scope="module")
def real_files() -> list[Path]:
    return list(fuzz.real_files(12, seed=7))


@pytest.mark.parametrize("number", range(12))
def test_files_of_the_environment(real_files: list[Path], number: int) -> None:
    for name, text in fuzz.texts_of(real_files[number]):
        tally = fuzz.Tally()
        fuzz.measured(tally, name, text, Options())
        assert not tally.failures


def test_the_same_input_for_the_same_number() -> None:
    assert fuzz.generated(3, 5, SEEDS) == fuzz.generated(3, 5, SEEDS)
    assert len({fuzz.generated(number, 5, SEEDS) for number in range(20)}) > 15


def test_the_check_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: object) -> str:
        raise EditError("no")

    for broken, says in (
        (crash, "EditError"),
        (lambda text, *rest: f"{text}\n(", "does not compile"),
        (lambda text, *rest: text.replace("import torch as _torch\n", ""), "out of order: import torch"),
        (lambda text, *rest: f"{text}\nx = 1\n", "changes again"),
    ):
        monkeypatch.setattr(pipeline, "_rewrite", broken)
        tally = fuzz.Tally()
        fuzz.measured(tally, "input", fuzz.WRAP, Options())
        assert [says in failure for failure in tally.failures] == [True]


# -- time is linear in the size --------------------------------------------------------------------------------------

HEAD = """\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

net = nn.DataParallel(nn.Linear(4, 2)).cuda()
"""
LONG = {
    "assignments": lambda n: "".join(f"x{i} = {i}\n" for i in range(n)),
    "functions": lambda n: "".join(f"def f{i}(a):\n    b = a.cuda()\n    return b\nf{i}(1)\n" for i in range(n // 4)),
    "calls in a chain": lambda n: "".join(f"def f{i}(a):\n    return f{i + 1}(a)\n" for i in range(n // 2)) + "f0(1)\n",
    "a list": lambda n: f"s = [{', '.join(map(str, range(n)))}]\n",
    "elif": lambda n: "if a == 0:\n    b = 0\n" + "".join(f"elif a == {i}:\n    b = {i}\n" for i in range(1, n // 2)),
    "classes": lambda n: "".join(f"class C{i}:\n    def f(self):\n        return self.x\n" for i in range(n // 3)),
    "imports": lambda n: "".join(f"from m{i} import a{i}\n" for i in range(n)),
    "one function": lambda n: "def f(a):\n" + "".join(f"    x{i} = a + {i}\n" for i in range(n)) + "f(1)\n",
    "loaders": lambda n: "".join(f"l{i} = DataLoader(x, {i + 1})\nfor b in l{i}:\n    net(b)\n" for i in range(n // 3)),
    "files": lambda n: "".join(f"with open('a{i}', 'w') as f:\n    f.write('x')\n" for i in range(n // 2)),
    "devices": lambda n: "".join(f"t{i} = torch.rand(2).cuda(1)\n" for i in range(n)),
    "wide text": lambda n: "s = [" + ", ".join(f"'é{i}'" for i in range(n)) + "]\n",
}


def _seconds(text: str) -> float:
    start = time.process_time()
    assert "wrap_model" in convert_source(text, "train.py", Options()).new_text
    return time.process_time() - start


@pytest.mark.parametrize("kind", LONG)
def test_time_is_linear(kind: str) -> None:
    small, large = (_seconds(HEAD + LONG[kind](n)) for n in (300, 1200))
    # Four times as long; quadratic parts make it sixteen times. A second is for the machine's moods.
    assert large < 8 * small + 1


def test_memory_is_linear() -> None:
    import tracemalloc

    peaks = []
    for n in (500, 2000):
        tracemalloc.start()
        convert_source(HEAD + LONG["assignments"](n), "train.py", Options())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 6 * peaks[0]


CALLS_ITSELF = """\
import argparse
import torch.nn as nn
parser = argparse.ArgumentParser()
net = nn.DataParallel(nn.Linear(4, 2))
def main(again):
    args = parser.parse_args()
    main(args.a)
    main(args.b)
main(1)
"""
LONE_RETURN = """\
import torch.nn as nn
class Data(Dataset):
    def __getitem__(self, i):
        return self.x[i % len(self.x)], self.y[i % len(self.y)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
RETURN        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.fc2 = nn.Linear(128, 10)
def main():
    net = nn.DataParallel(Net()).to(device)
    for x, y in loader:
        correct += (net(x).argmax(1) == y).sum().item()
""".replace("RETURN", "\r")


@pytest.mark.parametrize(
    "text", [CALLS_ITSELF, LONE_RETURN], ids=["calls itself", "a carriage return between statements"]
)
def test_what_was_found(text: str) -> None:
    begin = time.process_time()
    assert fuzz.check(text, Options()) == "converted"
    assert time.process_time() - begin < 5
