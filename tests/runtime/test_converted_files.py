"""What conversions do to files, run on real ranks: nobody hangs, nobody reads half a file, nobody deletes another's."""

from __future__ import annotations

import os
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Any

import dp2ddp_runtime as ddp
import pytest
from dp2ddp_runtime.world import world

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import errno, glob, os, shutil, sys, tempfile, threading, time, urllib.request, zipfile
import torch, torch.nn as nn
net = nn.DataParallel(nn.Linear(4, 2))
"""
_RULES = frozenset({"DDP008", "DDP011", "DDP012", "DDP018", "DDP019"})


def _converted(body: str) -> str:
    return convert_source(_HEAD + textwrap.dedent(body), "script.py", Options(select=_RULES)).new_text


def _fetch_slowly(url: str, path: str) -> None:
    """`urlretrieve` that takes its time, and says that it was called."""
    with open("fetched", "a") as log:
        log.write(f"{world.rank}\n")
    content = Path(url).read_bytes()
    time.sleep(0.2)
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        time.sleep(0.2)
        file.write(content[len(content) // 2 :])


def _run(text: str, folder: str, per_machine: int = 0) -> dict[str, Any]:
    """Run a converted script, as one of `per_machine` ranks of each machine; the value of `result`, and who fetched."""
    os.chdir(folder)
    place = world
    local, original = place.local_rank, urllib.request.urlretrieve
    place.local_rank = place.rank % per_machine if per_machine else local
    urllib.request.urlretrieve = _fetch_slowly  # type: ignore[assignment]
    try:
        names: dict[str, Any] = {"RANK": place.rank, "MACHINE": place.rank - place.local_rank}
        exec(compile(text, "script.py", "exec"), names)
        ddp.barrier()  # a script's end is one
    finally:
        place.local_rank, urllib.request.urlretrieve = local, original
    return {"result": names["result"]}


def _results(ranks: Any, body: str, folder: Path, n: int = 2, **kwargs: int) -> list[Any]:
    answers = ranks(n, _run, _converted(body), str(folder), timeout=60, **kwargs)
    return [answer["result"] for answer in answers]


def _fetched(folder: Path) -> list[str]:
    return (folder / "fetched").read_text().split()


GUARDED = {
    "a question": """
        if not os.path.exists("data.bin"):
            urllib.request.urlretrieve("source", "data.bin")
    """,
    "a function that looks": """
        def get(path):
            if os.path.exists(path):
                return
            os.makedirs("made")
            urllib.request.urlretrieve("source", path)
        get("data.bin")
    """,
}


@pytest.mark.parametrize("shape", GUARDED)
def test_a_file_is_fetched_once_and_whole(ranks: Any, tmp_path: Path, shape: str) -> None:
    (tmp_path / "source").write_bytes(bytes(range(200)))
    reading = '    result = len(open("data.bin", "rb").read())\n'
    body = textwrap.dedent(GUARDED[shape]) + textwrap.dedent(reading)
    assert _results(ranks, body, tmp_path, n=3) == [200] * 3
    assert _fetched(tmp_path) == ["0"]


def test_a_download_finds_its_folder(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(200))
    body = """
        root = "data"
        if not os.path.exists(root):
            os.mkdir(root)
        name = os.path.join(root, "data.bin")
        if not os.path.exists(name):
            urllib.request.urlretrieve("source", name)
        result = len(open(name, "rb").read())
    """
    assert _results(ranks, body, tmp_path, n=3) == [200] * 3
    assert _fetched(tmp_path) == ["0"]


def test_names_of_a_rank_s_own_that_are_only_written_are_rank_0_s(ranks: Any, tmp_path: Path) -> None:
    body = """
        run = f"{time.time()} {os.getpid()}"
        if not os.path.exists(run):
            os.makedirs(os.path.join(run, "old"))
        with open(os.path.join(run, "log"), "w") as file:
            file.write("begun\\n")
        for epoch in range(3):
            open(os.path.join(run, "log"), "a").write(f"{epoch}\\n")
            torch.save(epoch, os.path.join(run, "last.pt"))
            shutil.move(os.path.join(run, "last.pt"), os.path.join(run, f"{epoch}.pt"))
        os.rmdir(os.path.join(run, "old"))
        result = 1
    """
    assert "broadcast" not in _converted(body)
    assert _results(ranks, body, tmp_path) == [1, 1]
    (run,) = tmp_path.iterdir()
    assert sorted(os.listdir(run)) == ["0.pt", "1.pt", "2.pt", "log"]
    assert (run / "log").read_text().split() == ["begun", "0", "1", "2"]


def test_a_window_s_key_is_one_answer(ranks: Any, tmp_path: Path) -> None:
    cv2 = tmp_path / "cv2.py"
    cv2.write_text("shown = []\ndef imshow(*args):\n    shown.append(args[0])\ndef waitKey(ms):\n    return 27\n")
    body = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        import cv2
        rounds = 0
        while True:
            rounds += 1
            cv2.imshow("x", 1)
            if cv2.waitKey(1) == 27:
                break
        result = [rounds, len(cv2.shown)]
    """
    text = convert_source(_HEAD + textwrap.dedent(body), "script.py", Options()).new_text
    found = [each["result"] for each in ranks(2, _run, text.replace("ddp.setup()", ""), str(tmp_path), timeout=60)]
    assert found == [[1, 1], [1, 0]]
