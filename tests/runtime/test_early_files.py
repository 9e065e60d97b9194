"""What a script writes before `ddp.setup()`: the launcher has come that way first, so ranks don't write it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from starts import Warm, write

# Each file says who has written it, and how often: the processes that come this way are told apart by `RANK`'s place.
_SCRIPT = """
    import io, json, logging
    mark = "rank" if "DP2DDP_PLACE" in os.environ else "plain"
    with open("options.txt", "wt") as f:
        f.write("lr: 0.1\\n")
    with open("lines.txt", "a") as f:
        print("started", file=f)
    log = open("log.txt", "w")
    print("before", file=log)
    flushed = io.open("flushed.txt", "wb", buffering=0)
    flushed.write(b"one ")
    more = open("more.txt", "a")
    more.write("one ")
    more.flush()
    table = open("table.txt", "w+")
    table.write("abc")
    table.flush()
    open(f"{mark}.json", "w").write(json.dumps(mark))
    ddp.setup()
    print("after", file=log)
    log.close()
    flushed.write(b"two")
    more.write("two")
    more.close()
    table.seek(0)
    first = table.read(1)
    table.write("X") if first == "a" else None
    table.close()
    ddp.barrier()
    with open("lines.txt", "a") as f:
        print("trained", file=f)
"""


@pytest.mark.parametrize("nproc", [1, 3])
def test_files_are_written_once_however_many_come_that_way(warm: Warm, tmp_path: Path, nproc: int) -> None:
    (tmp_path / "more.txt").write_text("zero ")
    (tmp_path / "options.txt").write_text("an older run's, which was longer\n")
    done = warm.start(write(tmp_path, _SCRIPT), nproc=nproc, cwd=tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in tmp_path.glob("*.*") if path.suffix != ".py"}
    expected = {
        "options.txt": "lr: 0.1\n",
        "lines.txt": "started\ntrained\n",
        "log.txt": "before\nafter\n",
        "flushed.txt": "one two",
        "more.txt": "zero one two",
        "table.txt": "abcX",
        "plain.json": '"plain"',
    }
    # What the launcher has not written, as it had another name for it, is rank 0's.
    assert found == {**expected, **({"rank.json": '"rank"'} if nproc > 1 else {})}
