"""Time, memory and traffic of a training step of converted scripts, beside hand-written DDP and others, in one run.

Each case is a script with nn.DataParallel (`scripts/`), and is trained by: its conversion; a hand-written DDP script;
Accelerate and Lightning Fabric, where they are installed; and the original without the wrap, as one process. Ranks have
one thread each, as torchrun gives them; the single process has what torch takes by itself, all cores.

Where a process finds memory, or a core its neighbours, favours one variant or another for as long as it lives, by some
hundredths: so everything is started several times. At each start every variant has its ranks, and they take turns of
some steps, in another order each round, so that the machine's load falls on all of them. The ranks of the others are
stopped meanwhile, their loaders' workers too: workers left running would fill their queues in another variant's time,
and begin their own turn with batches that cost nothing. Each variant has processes of its own, so that memory and bytes
are its own, too.

A start's time is the median of its turns. Shown are the best start and the median one, and both as ratios to those of
hand-written DDP; `--max` bounds the ratio of the best, because other people's load only ever adds. An epoch never ends
here: what its start and end cost is not in a step's time. `cpu ms` is what processors worked for a rank, on which load
tells less; its waiting is not in it, nor are its loader's workers. `peak MB` is the most memory that a rank has held,
without its loader's workers (on CUDA: of the GPU's). `sent kB` is what a rank sends in a step, over TCP: what the
runtime sends through Unix sockets (up to 32 kB a message) or NCCL over the GPUs' links is not in it.

    python benchmarks/training.py [CASE ...] [--ranks 2] [--starts 4] [--rounds 6] [--steps 16] [--variants NAME ...]
                                  [--max converted=1.05 ...] [--device cuda] [--json FILE]

Exits with 1 where a ratio is above its bound or a rank fails. On CUDA each rank needs a GPU; by hand and converted also
work with several ranks on one, over gloo. Ratios mean something only where there is a processor for each rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rank_set import RankError, RankSet, Turn, places
from variants import BY_HAND, CASES, VARIANTS, Case

FIRST = 12  # steps behind a start that don't count
WARM_UP = 2  # steps at the start of each turn that don't count
AHEAD = 16  # steps that loaders may be ahead, so that none comes to the end of the epoch
_TITLES = ("best ms", "median ms", "of best", "of median", "cpu ms", "peak MB", "sent kB")
Measured = dict[str, list[list[Turn]]]
"""The turns at each start, by variant."""


@dataclass(frozen=True)
class Row:
    """What a variant took: milliseconds a step, ratios to hand-written DDP, megabytes, kilobytes a step."""

    best_ms: float
    median_ms: float
    best_ratio: float
    median_ratio: float
    cpu_ms: float
    peak_mb: float
    sent_kb: float
    starts_ms: Sequence[float]


def main() -> None:
    """Measure the cases one after another."""
    arguments = _parse()
    limits = dict(arguments.max)
    tables: dict[str, dict[str, Row]] = {}
    failed = False
    for name in arguments.cases or CASES:
        try:
            measured = _measure(CASES[name], arguments)
        except RankError as error:
            raise SystemExit(f"{name}: {error}") from None
        tables[name] = _rows(measured, arguments.steps)
        _show(name, tables[name], arguments)
        failed |= any(row.best_ratio > limits.get(variant, float("inf")) for variant, row in tables[name].items())
        if arguments.json:
            arguments.json.write_text(json.dumps(_plain(tables), indent=1))
    if failed:
        raise SystemExit("a ratio is above its bound")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each variant at each start")
    parser.add_argument("--steps", type=int, default=16, help="in a turn")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    parser.add_argument("--max", nargs="+", type=_limit, default=[], metavar="VARIANT=RATIO")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"no case {unknown[0]!r} (there are {', '.join(CASES)})")
    if min(arguments.ranks, arguments.starts, arguments.rounds, arguments.steps) < 1:
        parser.error("there must be a rank, a start, a round and a step at least")
    if arguments.device == "cuda" and not _has_gpu():
        parser.error("torch finds no GPU")
    return arguments


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _limit(text: str) -> tuple[str, float]:
    name, _, ratio = text.partition("=")
    if name not in VARIANTS:
        raise argparse.ArgumentTypeError(f"no variant {name!r} (there are {', '.join(VARIANTS)})")
    return name, float(ratio)


def _measure(case: Case, arguments: argparse.Namespace) -> Measured:
    wanted = {name: VARIANTS[name] for name in VARIANTS if name in arguments.variants or name == BY_HAND}
    texts = {name: text for name, variant in wanted.items() if (text := variant.script(case)) is not None}
    steps = FIRST + arguments.rounds * (WARM_UP + arguments.steps) + AHEAD
    measured: Measured = {name: [] for name in texts}
    with tempfile.TemporaryDirectory() as folder:
        scripts = {name: Path(folder, f"{name}.py") for name in texts}
        for name, script in scripts.items():
            script.write_text(texts[name])
        for start in range(arguments.starts):
            with contextlib.ExitStack() as stack:
                sets = {}
                for name, script in scripts.items():
                    command = wanted[name].arguments(case, steps * case.batch_size)
                    where = places(arguments.ranks, wanted[name].alone, arguments.device)
                    sets[name] = stack.enter_context(RankSet(name, script, command, where))
                    sets[name].turn(0, FIRST)
                for name, turns in _take_turns(sets, arguments, start).items():
                    measured[name].append(turns)
    return measured


def _take_turns(sets: Mapping[str, RankSet], arguments: argparse.Namespace, start: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {name: [] for name in sets}
    order = list(sets)
    for number in range(arguments.rounds):
        random.Random(f"{start} {number}").shuffle(order)
        for name in order:
            turns[name].append(sets[name].turn(WARM_UP, arguments.steps))
    return turns


def _rows(measured: Measured, steps: int) -> dict[str, Row]:
    starts = {
        name: [statistics.median(turn.seconds for turn in turns) for turns in measured[name]] for name in measured
    }
    best, median = min(starts[BY_HAND]), statistics.median(starts[BY_HAND])
    rows = {}
    for name, seconds in starts.items():
        turns = [turn for of_start in measured[name] for turn in of_start]
        rows[name] = Row(
            best_ms=min(seconds) / steps * 1e3,
            median_ms=statistics.median(seconds) / steps * 1e3,
            best_ratio=min(seconds) / best,
            median_ratio=statistics.median(seconds) / median,
            cpu_ms=statistics.median(turn.cpu for turn in turns) / steps * 1e3,
            peak_mb=max(turn.peak for turn in turns) / 1e6,
            sent_kb=statistics.median(turn.sent for turn in turns) / steps / 1e3,
            starts_ms=[each / steps * 1e3 for each in seconds],
        )
    return rows


def _show(name: str, rows: Mapping[str, Row], arguments: argparse.Namespace) -> None:
    case = CASES[name]
    sizes = f"{arguments.ranks} ranks ({arguments.device}), batch {case.batch_size}, workers: {case.workers}"
    print(f"\n{name}: {sizes}; {arguments.starts} starts of {arguments.rounds} turns of {arguments.steps} steps")
    print("            " + "".join(f"{title:>10}" for title in _TITLES))
    for variant, row in rows.items():
        times = f"{row.best_ms:10.2f}{row.median_ms:10.2f}{row.best_ratio:10.3f}{row.median_ratio:10.3f}"
        print(f"{variant:12}{times}{row.cpu_ms:10.2f}{row.peak_mb:10.0f}{row.sent_kb:10.1f}")
    if missing := [variant for variant in arguments.variants if variant not in rows]:
        print(f"left out (not installed): {', '.join(missing)}")
    sys.stdout.flush()


def _plain(tables: Mapping[str, Mapping[str, Row]]) -> dict[str, dict[str, dict[str, object]]]:
    return {case: {variant: asdict(row) for variant, row in rows.items()} for case, rows in tables.items()}


if __name__ == "__main__":
    main()
