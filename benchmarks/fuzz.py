"""Converts what nobody thought of, and checks that nothing breaks: no traceback, output that compiles, in time.

    python benchmarks/fuzz.py --generated 10000 --files 20000 [--seed 1] [--minutes M] [--from N]

Generated: the fixtures and the scripts of this folder, with some lines and tokens lost, doubled, exchanged, and odd
ones put in. Files: those of the installed packages and of Python's library, each as it is and with a use of
`DataParallel` at its end, without which nothing would be looked at. Each failure is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import io
import random
import site
import sys
import sysconfig
import time
import tokenize
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from dp2ddp.convert.diffs import lines_of
from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.errors import BadInput
from dp2ddp.project import text_files
from dp2ddp.rules import Options

ROOT = Path(__file__).parents[1]
#: Processor time that a conversion may take: to begin with, and for each line.
START_SECONDS, LINE_SECONDS = 2.0, 0.02
WRAP = """
import torch as _torch
import torch.nn as _nn
from torch.utils.data import DataLoader as _DataLoader
_net = _nn.DataParallel(_nn.Linear(4, 2), device_ids=[0, 1]).cuda()
for _batch in _DataLoader(_torch.rand(8, 4), batch_size=4):
    print(_net(_batch.cuda(0)).sum().item())
_torch.save(_net.state_dict(), "net.pt")
"""
_ODD = (
    *"( ) [ ] { } : , . = == := @ -> ; \\ ** * // << not lambda: await yield return async def if else elif".split(),
    *"class for in while try: except: finally: with as import from global nonlocal del pass break match case".split(),
    *("\f", "\t", "\r", "\u202e", "\x1b", "é", "😀", "'''", '"""', "f'{x!r:>{y}}'", "rb''", "0777", "1_0", "1e999"),
    *("nn.DataParallel(", "net.module", ".cuda(0)", "torch.save(", "net = nn.DataParallel(net)", "device_ids=[0]"),
)


class Failure(Exception):  # noqa: N818 - a finding
    """A promise that was not kept."""


@dataclass
class Tally:
    """What came out.

    Attributes:
        outcomes: how many inputs ended how.
        failures: what broke, with what repeats it.
        slowest: processor seconds for each 1,000 lines of the slowest input of more than 200 lines, and its name.
        seconds: of all.
        lines: of all.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    seconds: float = 0.0
    lines: int = 0


def compiles(text: str) -> bool:
    """Whether Python takes a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "input", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def check(text: str, options: Options) -> str:
    """Converts a program and checks the promises; returns how it ended.

    Raises:
        Failure: a promise was broken. Any other exception is a traceback that a user would see.
    """
    try:
        done = convert_source(text, "input.py", options)
    except BadInput as error:
        if "\n" in str(error) or not error.what:
            raise Failure(f"no clear line: {error}") from error
        return "refused" if compiles(text) else "no Python, refused"
    if done.changed != (done.new_text != text):
        raise Failure("it says what it hasn't done")
    if not done.changed:
        return "left as it is"
    if not compiles(done.new_text):
        raise Failure("the output does not compile")
    if lost := _lost(text, done):
        raise Failure(f"a line that no edit touches is gone, or out of order: {lost}")
    again = convert_source(done.new_text, "input.py", options)
    if again.changed or not again.converted_before:
        raise Failure("converted a second time it changes again")
    return "converted"


def _lost(text: str, done: Conversion) -> str:
    """The first line that isn't in the output, though no edit touches it; what stands in a block may be moved.

    The head of an `if` goes with its last statement.
    """
    touched = {line for edit in done.edits for line in range(edit.span.start.line, edit.span.end.line + 1)}
    heads = ("if ", "elif ", "else:") if any(getattr(edit, "drop_empty_if", False) for edit in done.edits) else ()
    rest = iter([line.strip() for line in lines_of(done.new_text)])
    kept = [line.strip() for number, line in enumerate(lines_of(text), start=1) if number not in touched]
    return next((line for line in kept if not line.startswith(heads) and line not in rest), "")


def measured(tally: Tally, name: str, text: str, options: Options) -> None:
    """Checks one program, and enters what came of it."""
    lines = text.count("\n") + 1
    start = time.process_time()
    try:
        tally.outcomes[check(text, options)] += 1
    except Failure as error:
        tally.failures.append(f"{name}: {error}")
    except Exception:  # noqa: BLE001 - that is what is looked for
        tally.failures.append(f"{name}: {traceback.format_exc()}")
    seconds = time.process_time() - start
    if seconds > START_SECONDS + LINE_SECONDS * lines:
        tally.failures.append(f"{name}: {seconds:.1f} s for {lines} lines")
    if lines > 200:
        tally.slowest = max(tally.slowest, (1000 * seconds / lines, name))
    tally.seconds += seconds
    tally.lines += lines


# -- inputs ----------------------------------------------------------------------------------------------------------


def seeds() -> list[str]:
    """The programs that are varied."""
    paths = [*sorted(ROOT.glob("fixtures/*/*.py")), *sorted(ROOT.glob("benchmarks/scripts/**/*.py"))]
    return [path.read_text("utf-8") for path in paths if not path.name.endswith("_ddp.py")]


def generated(number: int, seed: int, texts: Sequence[str]) -> str:
    """The program with that number: the same for the same seed."""
    draw = random.Random(f"{seed} {number}")
    text = draw.choice(texts)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 5])):
        text = draw.choice(_CHANGES)(text, draw, texts)
    return text


def _lines_changed(text: str, draw: random.Random, texts: Sequence[str]) -> str:
    lines = text.splitlines(keepends=True) or ["\n"]
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        del lines[at : at + draw.randrange(1, 4)]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = draw.choice(["    ", "\t", "  "]) + lines[at]
    else:
        lines[at] = lines[at].lstrip()
    return "".join(lines)


def _spliced(text: str, draw: random.Random, texts: Sequence[str]) -> str:
    """With some lines of another program in it, at the same indentation."""
    lines, others = text.splitlines(keepends=True), draw.choice(texts).splitlines(keepends=True)
    start = draw.randrange(len(others))
    at = draw.randrange(len(lines) + 1)
    return "".join([*lines[:at], *others[start : start + draw.randrange(1, 12)], *lines[at:]])


def _tokens_changed(text: str, draw: random.Random, texts: Sequence[str]) -> str:
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.string.strip()]
    except (tokenize.TokenError, SyntaxError):
        return text
    if not tokens:
        return text
    one, other = draw.choice(tokens), draw.choice(tokens)
    new = draw.choice(["", other.string, other.string, draw.choice(_ODD)])
    lines = text.splitlines(keepends=True)
    (line, start), (last, end) = one.start, one.end
    if line != last:
        return text
    lines[line - 1] = lines[line - 1][:start] + new + lines[line - 1][end:]
    return "".join(lines)


def _odd_put_in(text: str, draw: random.Random, texts: Sequence[str]) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(_ODD) + text[at:]


_Change = Callable[[str, random.Random, Sequence[str]], str]
_CHANGES: Sequence[_Change] = (_lines_changed, _lines_changed, _spliced, _tokens_changed, _tokens_changed, _odd_put_in)


def options(number: int, seed: int) -> Options:
    """Options for an input, drawn as well."""
    draw = random.Random(f"options {seed} {number}")
    return Options(
        sync_bn=draw.random() < 0.2,
        allow_ddp=draw.random() < 0.5,
    )


def real_files(count: int, seed: int) -> Iterator[Path]:
    """The first `count` Python files of the running environment, in an order drawn by `seed`."""
    folders = [Path(folder) for folder in (*site.getsitepackages(), sysconfig.get_path("stdlib"))]
    found = sorted({path for folder in folders for path in folder.rglob("*.py")})
    random.Random(seed).shuffle(found)
    yield from found[:count]


def texts_of(path: Path) -> list[tuple[str, str]]:
    """A file as it is, and with a wrap; nothing where it can't be read as text."""
    try:
        text = text_files.read(str(path)).text
    except BadInput:
        return []
    return [(str(path), text), (f"{path} + wrap", f"{text}\n{WRAP}")]


# -- the command -----------------------------------------------------------------------------------------------------


def run(count: int, files: int, seed: int, minutes: float, first: int) -> Tally:
    """Goes through all inputs, or as many as the time allows; both kinds get half of it.

    Args:
        first: the number of the first file that is looked at, where another run was stopped.
    """
    tally = Tally()
    start = time.monotonic()
    texts = seeds()
    for number in range(count):
        if time.monotonic() - start > 30 * minutes:
            break
        measured(tally, f"generated {number} of seed {seed}", generated(number, seed, texts), options(number, seed))
        _progress("generated", number + 1, tally)
    for number, path in islice(enumerate(real_files(files, seed)), first, None):
        if time.monotonic() - start > 60 * minutes:
            break
        for name, text in texts_of(path):
            measured(tally, name, text, options(number, seed))
        _progress("files", number + 1, tally)
    return tally


def _progress(kind: str, number: int, tally: Tally) -> None:
    if number % 500 == 0:
        print(f"{number} {kind}: {dict(tally.outcomes)}, {len(tally.failures)} failures", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", type=int, default=1000)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="stop behind that; half of it for either kind")
    parser.add_argument("--from", dest="first", type=int, default=0, help="go on at this file, where a run was stopped")
    given = parser.parse_args()
    tally = run(given.generated, given.files, given.seed, given.minutes, given.first)
    for failure in tally.failures:
        print(failure)
    rate, name = tally.slowest
    print(f"{sum(tally.outcomes.values())} inputs of {tally.lines} lines in {tally.seconds:.0f} s of processor time")
    print(", ".join(f"{number} {outcome}" for outcome, number in tally.outcomes.most_common()))
    print(f"slowest: {rate:.1f} s for 1,000 lines ({name})")
    print(f"{len(tally.failures)} failures")
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
