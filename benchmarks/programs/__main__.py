"""Random training programs: ranks must do as `nn.DataParallel` does, whatever a program does.

    python benchmarks/programs --count 200 --seed 20261123 [--ranks 2 3] [--only SHAPE ...] [--oracle torch]
    python benchmarks/programs --spec '{...}'

Each program is composed of shapes (`losses.py`, `backwards.py`, `around.py`), models of `blocks.py` and options, drawn
by a seed; it runs on ranks and with the oracle, and all that it prints, every parameter, gradient, buffer and state of
an optimizer after each step are compared. With `--against`, two oracles are. A program that differs, hangs or fails is
made smaller as long as it does, and printed. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])
    sys.path.append(str(Path(__file__).parents[2] / "tests"))  # where the pretend CUDA is

from programs import spec as specs
from programs.crew import Crew, Outcome
from programs.parts import KINDS, Part
from programs.player import ORACLES, WRAP


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=200, help="programs")
    parser.add_argument("--seed", type=int, default=int(date.today().strftime("%Y%m%d")), help="of the first one")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3], help="numbers of ranks to draw from")
    parser.add_argument("--only", nargs="+", default=[], choices=sorted(KINDS), help="shapes to have one of")
    parser.add_argument("--oracle", choices=sorted(ORACLES), default="emulated", help="what stands for DataParallel")
    parser.add_argument("--against", choices=sorted(ORACLES), help="an oracle that plays instead of ranks")
    parser.add_argument("--wrap", default=WRAP, help="what wraps models on ranks, as module:name")
    parser.add_argument("--spec", type=Part.from_json, help="one program, as JSON")
    parser.add_argument("--tries", type=int, default=150, help="runs to make a failing program smaller")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds for a program")
    return parser.parse_args(arguments)


def _report(crew: Crew, spec: Part, outcome: Outcome, tries: int) -> None:
    """Tell of a failing program, and of a smaller one."""
    print(f"\nprogram {spec['seed']} {outcome.kind}: {outcome.text}", flush=True)
    tries = tries if outcome.kind != "hangs" else 20
    small = specs.shrink(spec, lambda less: crew.play(less).kind == outcome.kind, tries)
    found = crew.play(small)
    print(f"  smaller, it {found.kind}: {found.text[-3000:]}\n  --spec '{small.to_json()}'\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run programs; returns the exit code."""
    given = _parse(arguments)
    outcomes: Counter[str] = Counter({"differs": 0, "hangs": 0, "fails": 0})
    with Crew(given.oracle, given.wrap, given.patience, given.against) as crew:
        if given.spec is not None:
            outcome = crew.play(given.spec)
            print(outcome.kind, outcome.text)
            return 0 if outcome.is_fine else 1
        print(f"seed {given.seed}", flush=True)
        start = time.monotonic()
        for number in range(given.count):
            spec = specs.draw(given.seed + number, given.ranks, given.only)
            outcome = crew.play(spec)
            outcomes[outcome.kind] += 1
            if not outcome.is_fine:
                _report(crew, spec, outcome, given.tries)
            if (number + 1) % 100 == 0:
                print(f"{number + 1} programs, {time.monotonic() - start:.0f} s, {dict(outcomes)}", flush=True)
    print(f"{given.count} programs: " + ", ".join(f"{count} {kind}" for kind, count in outcomes.items()))
    return 1 if outcomes["differs"] + outcomes["hangs"] + outcomes["fails"] else 0


if __name__ == "__main__":
    sys.exit(main())
