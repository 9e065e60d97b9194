"""What a mistake is, the scripts into which it is planted, and what `dp2ddp verify` says of one."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.txt")
_PATIENCE = 240.0  # seconds for each run of a script
_AT_ALL = 1500.0  # seconds for a verification, which may repeat them
#: Fixtures, with arguments that make two epochs of 96 digits a dozen steps; and the option that takes the seed.
_FIXTURES = {
    "mnist_amp_accumulate": "--epochs=2",
    "mnist_contrastive": "--epochs=2 --probe_epochs=1 --batch_size=24 --print_freq=2",
    "mnist_files": "--epochs=3 --batch-size=30",
    "mnist_functions": "--epochs=2 --batch-size=24 --print-freq=2",
    "mnist_gan": "--epochs=1 --batchSize=24",
    "mnist_iterations": "--max-iter=8 --val-every=4 --log-every=2 --batch-size=8",
    "mnist_loss_in_model": "--epochs=2",
    "mnist_rnn": "--epochs=2 --log_interval=2",
    "mnist_script": "--epochs=2",
    "mnist_trainer": "--epochs=2",
    "mnist_vae": "--epochs=2 --batch-size=24 --log-interval=2",
    "mnist_weighted": "--epochs=2",
}
#: Of `benchmarks/scripts/small`: made-up samples, which are augmented in worker processes.
_SMALL = ("flips", "iterations", "resume", "segment", "signals")
BASES: Mapping[str, Path] = {
    **{name: ROOT / "benchmarks" / "scripts" / "small" / f"{name}.py" for name in _SMALL},
    **{name: ROOT / "fixtures" / name / "train.py" for name in _FIXTURES},
}


def arguments(script: str, data: Path, seed: int | None) -> list[str]:
    """A base's command line, with a seed unless its own is wanted."""
    seeds = [] if seed is None else ["--manualSeed" if script == "mnist_gan" else "--seed", str(seed)]
    return [*(["--data", str(data), *_FIXTURES[script].split()] if script in _FIXTURES else []), *seeds]


@cache
def converted(script: str) -> str:
    """What the codemod makes of a base."""
    conversion = convert_source(BASES[script].read_text(), BASES[script].name, Options())
    assert conversion.changed
    return conversion.new_text


def digits(folder: Path) -> Path:
    """Leave a few of scikit-learn's digits in a folder, where torchvision's MNIST looks for them; returns it."""
    spec = importlib.util.spec_from_file_location("mistakes_digits", ROOT / "fixtures" / "digits.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    module.build_from_sklearn(module.raw_folder(folder / "all"))
    few: Path = module.subset(folder / "all", folder / "few", 96, 48)
    return few


@dataclass(frozen=True)
class Mistake:
    """A conversion that is wrong, and what `verify` has to say of it, which is known beforehand.

    Attributes:
        kind: what sort of mistake; there is one of each.
        script: into which base it is planted.
        edits: texts that the conversion has exactly once, and what they become.
        step: the first optimizer step, from 1, whose update differs; None where training is the same, and output or
            files differ.
        seen: a step before that one, at which its cause can be seen already (a setting of the optimizer, a sample).
        words: the cause has to have one of them, at a word's beginning.
        fails: ranks part ways, so that the script ends with an error; to say that it could not run is right, too.
    """

    kind: str
    script: str
    edits: tuple[tuple[str, str], ...]
    step: int | None
    seen: int | None = None
    words: tuple[str, ...] = ()
    fails: bool = False

    def text(self) -> str:
        """The conversion with the mistake.

        Raises:
            AssertionError: a text to replace isn't there, or more than once.
            SyntaxError: the outcome doesn't parse.
        """
        text = converted(self.script)
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.kind}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        ast.parse(text)
        return text


_HEAD = re.compile(
    r"(?P<kind>.*) \| (?P<script>\w+) \| step (?P<step>\d+|-)(?:, seen (?P<seen>\d))?(?P<fails>, fails)?"
)


def mistakes() -> list[Mistake]:
    """All that the catalogue has."""
    blocks = re.split(r"\n\n+", re.sub(r"(?m)^#.*\n", "", CATALOGUE.read_text()).strip())
    return [_mistake(block.splitlines()) for block in blocks]


def _mistake(block: list[str]) -> Mistake:
    head, words, *edits = block
    found = _HEAD.fullmatch(head)
    assert found, head
    step, seen = (None if each in ("-", None) else int(each) for each in found.group("step", "seen"))
    return Mistake(
        *(found["kind"], found["script"], tuple(_edits(edits)), step, seen),
        words=tuple(words.split(", ")),
        fails=found["fails"] is not None,
    )


def _edits(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Lines with `-` become those with `+` that follow; without any, they go with their line ends."""
    found = re.findall(r"((?:- .*\n)+)((?:\+ .*\n)*)", "\n".join(lines) + "\n")
    for old, new in found:
        texts = ["\n".join(line[2:] for line in part.splitlines()) for part in (old, new)]
        yield (texts[0], texts[1]) if new else (f"{texts[0]}\n", "")


@dataclass(frozen=True)
class Said:
    """What was said of a conversion.

    Attributes:
        verdict: as `verify` calls it; or what it ended with, where that was no verdict.
        step: of the first finding.
        cause: of the first finding, after its kind and what it is; where the conversion could not run, the reason.
        side: that could not run.
    """

    verdict: str
    step: int | None = None
    cause: str = ""
    side: str = ""
    seconds: float = 0.0

    def judged(self, mistake: Mistake) -> str:
        """`f` where a mistake was found, `s` at the right step, `n` by its name; `-` for each that isn't so."""
        fell = self.verdict == "could not run" and self.side == "converted" and mistake.fails
        found = self.verdict == "differ" or fell
        steps = range(mistake.seen or mistake.step or 0, (mistake.step or 0) + 1)
        at_step = fell or (self.step is None if mistake.step is None else self.step in steps)
        named = any(re.search(rf"(?<!\w){re.escape(word)}", self.cause, re.IGNORECASE) for word in mistake.words)
        return "".join(mark if found and so else "-" for mark, so in zip("fsn", (found, at_step, named)))


def verify(script: str, conversion: str, folder: Path, data: Path, seed: int | None = None) -> Said:
    """Run a base and a conversion of it.

    Args:
        folder: an empty one, in which they run.
        data: the folder of the digits.
        seed: the script's; its own by default.
    """
    (folder / "train.py").write_text(BASES[script].read_text())
    (folder / "train_ddp.py").write_text(conversion)
    options = ["--converted=train_ddp.py", "--nproc=2", "--format=json", "--quiet", f"--timeout={_PATIENCE:.0f}"]
    command = [sys.executable, "-m", "dp2ddp", "verify", "train.py", *options, "--", *arguments(script, data, seed)]
    # The checkout's packages in front: what is installed may be another checkout's.
    paths = [str(ROOT), str(ROOT / "runtime"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_AT_ALL
        )
    except subprocess.TimeoutExpired:
        return Said("no end", seconds=time.monotonic() - begin)
    return _read(done, time.monotonic() - begin)


def _read(done: subprocess.CompletedProcess[str], seconds: float) -> Said:
    text = done.stdout[done.stdout.find("{") :]
    try:
        told: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]  # a failure's traceback may follow
    except json.JSONDecodeError:
        return Said(f"exit code {done.returncode}", cause=done.stderr.strip()[-500:], seconds=seconds)
    if (failure := told["failure"]) is not None:
        reason = f"{failure['reason']}\n{failure['stderr']}"
        return Said(told["verdict"], cause=reason, side=failure["side"], seconds=seconds)
    if not told["findings"]:
        return Said(told["verdict"], cause="; ".join(told["notes"]), seconds=seconds)
    first = told["findings"][0]
    cause = f"[{first['kind']}] {first['what']} | {first['cause'] or ''}"
    return Said(told["verdict"], first["step"], cause, seconds=seconds)
