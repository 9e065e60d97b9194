"""Programs that nobody thought of: no traceback, output that compiles, the same when converted again, in time."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp2ddp.convert import pipeline
from dp2ddp.convert.diffs import lines_of
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options

ROOT = Path(__file__).parents[2]
FEW = settings(max_examples=60, deadline=None)
PATHS = [*sorted(ROOT.glob("fixtures/*/train*.py")), *sorted(ROOT.glob("benchmarks/scripts/**/*.py"))]
SEEDS = [path.read_text("utf-8") for path in PATHS if not path.name.endswith("_ddp.py")]
WRAP = """
import torch as _torch
import torch.nn as _nn
from torch.utils.data import DataLoader as _DataLoader
_net = _nn.DataParallel(_nn.Linear(4, 2), device_ids=[0, 1]).cuda()
for _batch in _DataLoader(_torch.rand(8, 4), batch_size=4):
    print(_net(_batch.cuda(0)).sum().item())
_torch.save(_net.state_dict(), "net.pt")
"""
ODD = (
    *"( ) [ ] { } : , . = == := @ -> ; \\ ** * // not lambda: await yield return async def if else elif".split(),
    *"class for in while try: except: finally: with as import from global nonlocal del pass break match case".split(),
    *("\f", "\t", "\r", "\u202e", "\x1b", "é", "😀", "'''", '"""', "f'{x!r:>{y}}'", "rb''", "0777", "1_0", "1e999"),
    *("nn.DataParallel(", "net.module", ".cuda(0)", "torch.save(", "net = nn.DataParallel(net)", "device_ids=[0]"),
)


def compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "input", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


PLAIN = Options()


def check(text: str, options: Options = PLAIN) -> str:
    """Convert a program, check what is promised, and return how it ended."""
    try:
        done = convert_source(text, "input.py", options)
    except BadInput:
        return "refused"
    assert done.changed == (done.new_text != text), "it says what it hasn't done"
    if not done.changed:
        return "left as it is"
    assert compiles(done.new_text), "the output does not compile"
    touched = {line for edit in done.edits for line in range(edit.span.start.line, edit.span.end.line + 1)}
    heads = ("if ", "elif ", "else:")  # an empty block goes with its head
    rest = iter([line.strip() for line in lines_of(done.new_text)])
    for number, line in enumerate(map(str.strip, lines_of(text)), start=1):
        assert number in touched or line.startswith(heads) or line in rest, f"gone, or out of order: {line}"
    again = convert_source(done.new_text, "input.py", options)
    assert not again.changed, "converted a second time it changes again"
    return "converted"


def changed(draw: random.Random) -> str:
    """A script with some lines lost, doubled, exchanged or moved, and odd words and other scripts' lines put in."""
    text = draw.choice(SEEDS)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 5])):
        lines, theirs = (each.splitlines(keepends=True) or ["\n"] for each in (text, draw.choice(SEEDS)))
        at, first = draw.randrange(len(lines)), draw.randrange(len(theirs))
        line, other, words = lines[at], draw.choice(lines), lines[at].split(" ")
        words[draw.randrange(len(words))] = draw.choice(ODD)
        odd, more = " ".join(words), theirs[first : first + draw.randrange(1, 12)]
        changes = [[], [other], [line, other], [f"    {line}"], [line.lstrip()], [odd], [line, *more]]
        lines[at : at + 1] = draw.choice(changes)
        text = "".join(lines)
    return text


@FEW
@given(draw=st.randoms(use_true_random=False))
def test_programs_with_changes(draw: random.Random) -> None:
    check(changed(draw), Options(sync_bn=draw.random() < 0.2, allow_ddp=draw.random() < 0.5))


@FEW
@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text(text: str) -> None:
    check(text)
    check(f"{text}\n{WRAP}")


def test_files_of_the_library() -> None:
    for path in sorted(Path(random.__file__).parent.glob("*.py"))[::20]:
        assert check(f"{path.read_text('utf-8')}\n{WRAP}") == "converted"


def test_the_check_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    for old, new, says in (
        ("\n_net", "\n(_net", "does not compile"),
        ("_torch.save", "x = 1\n_torch.save", "changes again"),
        ("import torch as _torch\n", "", "out of order: import torch"),
    ):
        monkeypatch.setattr(pipeline, "_rewrite", lambda text, *rest, old=old, new=new: text.replace(old, new))
        with pytest.raises(AssertionError, match=says):
            check(WRAP)


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
    "one function": lambda n: "def f(a):\n" + "".join(f"    x{i} = a + {i}\n" for i in range(n)) + "f(1)\n",
    "loaders": lambda n: "".join(f"l{i} = DataLoader(x, {i + 1})\nfor b in l{i}:\n    net(b)\n" for i in range(n // 3)),
    "files": lambda n: "".join(f"with open('a{i}', 'w') as f:\n    f.write('x')\n" for i in range(n // 2)),
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
    assert check(text) == "converted"
    assert time.process_time() - begin < 5
