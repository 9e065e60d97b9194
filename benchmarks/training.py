"""What a training step of a converted script takes, beside hand-written DDP.

    python benchmarks/training.py [CASE ...] [--ranks 2] [--starts 4] [--steps 96] [--max 1.05]

Each case is `scripts/train.py` with another model, converted by the codemod, and `scripts/by_hand.py`; ranks have one
thread each. Both are started in turn, several times: where a process finds memory favours one or the other for as long
as it lives, and other people's load only ever adds. So the ratio is that of the best starts, which `--max` bounds; it
means something only where there is a processor for each rank. With GPUs each rank takes one; on a single one, try
`--ranks 1`: a rank that does all that ranks do, and meets itself over NCCL.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
CASES = {
    "mnist": ["mnist"],
    "many": ["many"],
    "images-w0": ["images"],
    "images-w2": ["images", "--workers=2"],
    "segmentation": ["segmentation"],
    "mixup": ["mixup", "--workers=2"],
}


def converted(*, alone: bool) -> str:
    """The original as the codemod makes it; a single rank, which makes no process groups, meets itself."""
    from dp2ddp.convert.pipeline import convert_source
    from dp2ddp.rules import Options

    conversion = convert_source((SCRIPTS / "train.py").read_text(), "train.py", Options())
    assert conversion.changed
    meets = "\n\nfrom on_device import be_one\n\nbe_one()" * alone
    return conversion.new_text.replace("ddp.setup()", f"ddp.setup(){meets}", 1)


def start(command: Sequence[str], ranks: int) -> dict[str, Any]:
    """What rank 0 printed: milliseconds of a step, megabytes.

    Raises:
        SystemExit: it failed.
    """
    env = {**os.environ, "DP2DDP_NPROC": str(ranks), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure the cases one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--max", type=float, dest="limit", help="exit with 1 above this ratio")
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"no case {sorted(unknown)[0]!r} (there are {', '.join(CASES)})")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train_ddp.py")
        script.write_text(converted(alone=given.ranks == 1))
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
        ways = {"by hand": [*torchrun, str(SCRIPTS / "by_hand.py")], "converted": [str(script)]}
        print(f"{'':14}{'':>12}{'best ms':>10}{'median ms':>11}{'of best':>9}{'peak MB':>9}")
        for name in given.cases or CASES:
            found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
            for _ in range(given.starts):
                for way, command in ways.items():
                    found[way].append(start([*command, *CASES[name], f"--steps={given.steps}"], given.ranks))
            best = min(each["ms"] for each in found["by hand"])
            for way, starts in found.items():
                took, peak = [each["ms"] for each in starts], max(each["peak_mb"] for each in starts)
                times = f"{min(took):10.2f}{statistics.median(took):11.2f}{min(took) / best:9.3f}"
                print(f"{name:14}{way:>12}{times}{peak:9.0f}", flush=True)
            worst = max(worst, min(each["ms"] for each in found["converted"]) / best)
    if given.limit is not None and worst > given.limit:
        raise SystemExit(f"the ratio {worst:.3f} is above {given.limit}")


if __name__ == "__main__":
    main()
