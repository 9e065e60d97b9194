"""How many lines each room has, as `wc -l` counts them: a room that grows beyond its limit is looked at first.

`python tests/test_weight.py` prints the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: By folder. Raise one only with a reason in the commit, and lower it where lines went.
LIMITS = {
    "dp2ddp": 400,
    "dp2ddp/analysis": 1_000,
    "dp2ddp/command": 425,
    "dp2ddp/convert": 2_225,
    "dp2ddp/notebook": 425,
    "dp2ddp/page": 225,
    "dp2ddp/project": 1_225,
    "dp2ddp/rewrite": 625,
    "dp2ddp/rules": 1_875,
    "dp2ddp/source": 775,
    "dp2ddp/verify": 4_275,
    "runtime/dp2ddp_runtime": 7_625,
    "tests": 1_375,
    "tests/analysis": 625,
    "tests/benchmarks": 275,
    "tests/command": 175,
    "tests/convert": 1_575,
    "tests/docs": 425,
    "tests/e2e": 575,
    "tests/notebook": 375,
    "tests/pretend_cuda": 975,
    "tests/project": 425,
    "tests/rewrite": 200,
    "tests/rules": 700,
    "tests/runtime": 5_525,
    "tests/source": 75,
    "tests/verify": 2_325,
}


def lines(folder: Path) -> int:
    """All lines of Python below a folder; of the files in it alone where it is a package of rooms."""
    is_house = any(str((folder / child).relative_to(ROOT)) in LIMITS for child in folder.iterdir())
    return sum(path.read_bytes().count(b"\n") for path in (folder.glob if is_house else folder.rglob)("*.py"))


@pytest.mark.parametrize("room", LIMITS)
def test_no_room_grows(room: str) -> None:
    assert lines(ROOT / room) <= LIMITS[room]


def test_every_room_has_a_limit() -> None:
    houses = [ROOT / name for name in ("dp2ddp", "runtime/dp2ddp_runtime", "tests")]
    rooms = [room for house in houses for room in (house, *house.iterdir()) if any(room.glob("*.py"))]
    assert sorted(str(room.relative_to(ROOT)) for room in rooms) == sorted(LIMITS)


if __name__ == "__main__":
    for name, limit in LIMITS.items():
        print(f"{name:40} {lines(ROOT / name):6,} of {limit:6,}")
    for house in ("dp2ddp", "runtime", "tests"):
        found = sum(lines(ROOT / room) for room in LIMITS if room.split("/")[0] == house)
        print(f"{house:40} {found:6,}")
