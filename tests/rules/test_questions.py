"""Where the ranks' own clocks, or answers of a person, would part them; what they ask the disk needs no edit."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = (
    "import glob\nimport os\nfrom pathlib import Path\nfrom threading import Thread\n"
    "import torch\nimport torch.nn as nn\nfrom PIL import Image\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
)

CLOCKS = [
    "import time\nstart = time.time()\nfor i in range(9):\n    if time.time() - start > 10:\n        load(i)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n    out = net(x)\n"
    "    if time.time() - start > 10:\n        print(i, out)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n"
    "    elapsed = time.time() - start\n    if elapsed > 10:\n        break\n",
    "import time\nstart = time.time()\ndef over():\n    if time.time() - start > 9:\n        return True\nover()\n",
    "import time\nstart = 0\ntry:\n    net(x)\nexcept OSError:\n    start = time.time()\n    open(f'{start}', 'w')\n"
    "if start > 9:\n    net(x)\n",
    "import time\nstart = None\nfor i in range(9):\n    if start is not None and start < 9:\n        load(i)\n"
    "    net(x)\n    start = time.time()\n",
    "import time\nlast = 0\ndef step():\n    global last\n    if last > 9:\n        load(i)\n    net(x)\n"
    "    last = time.time()\nstep()\nstep()\n",
]
#: Rank 0's disk answers all ranks, wherever they ask.
LEFT = [
    "if os.path.exists(p):\n    load()\nfor d in os.listdir(r):\n    for f in os.listdir(d):\n        net(f)\n",
    "try:\n    load()\nexcept OSError:\n    if os.path.exists(p):\n        load()\n",
    "for e in os.scandir(d):\n    if os.path.exists(e.path):\n        load(e)\n",
    "import time\nlast = time.time()\nfor i in range(9):\n    net(x)\n    if time.time() - last > 10:\n"
    "        print(f'step {i}')\n        last = time.time()\n",
    "import time\nfrom tqdm import tqdm\nbar = tqdm(range(9))\nstart = time.time()\nfor i in bar:\n"
    "    loss = nn.functional.mse_loss(net(x), y)\n    if time.time() - start > 1:\n"
    "        bar.set_postfix(loss=loss.item())\n",
    "import time\nclass Bar:\n    def __init__(self):\n        self.last = time.time()\n"
    "    def update(self, n):\n        if time.time() - self.last < 1:\n            return\n"
    "        self.last = time.time()\n        print(n)\nfor i in range(9):\n    Bar().update(i)\n    net(x)\n",
    "import time\np = os.path.join('out', time.strftime('%H%M'))\nif not os.path.exists(p):\n    os.makedirs(p)\n",
    "import time\nif sys.argv[1:]:\n    p = f'{time.time()}'\nelse:\n    p = 'x'\n"
    "if not os.path.exists(p):\n    os.mkdir(p)\ntorch.load(p)\n",
    "import time\nstart = time.time()\ndef passed():\n    x = time.time() - start\n    if x > 3600:\n"
    "        return '{:.1f}h'.format(x)\n    elif x > 60:\n        return '%dm' % x\n    return f'{x}s'\npassed()\n",
    "import time\nstart = time.time()\ndef log(text):\n    x = time.time() - start\n    unit = 's'\n    if x > 60:\n"
    "        x = x / 60\n        unit = 'm'\n    print(x, unit, text)\nlog(net(torch.ones(8, 4)).mean())\n",
    "if not Path(p).exists():\n    Path(p).mkdir()\n",
    "import time\ndef run(name):\n    if not name:\n        name = time.strftime('%H')\n        net(x)\nrun(None)\n",
    "class Images:\n    def __getitem__(self, i):\n        if os.path.exists(i):\n            return i\nImages()\n",
]


def converted(body: str) -> str:
    return convert_source(_HEAD + body, "train.py", Options(select=frozenset({"DDP018"}))).new_text


@pytest.mark.parametrize("body", CLOCKS)
def test_rank_0_s_clock_decides(body: str) -> None:
    assert "if ddp.broadcast(" in converted(body)


def test_nothing_is_asked_in_what_the_ranks_run_one_after_the_other() -> None:
    body = "def see():\n    return 1 if os.path.exists('x') else 0\nif not see():\n    os.system('wget -O x y')\n"
    new = convert_source(_HEAD + body, "train.py", Options(select=frozenset({"DDP012", "DDP018"}))).new_text
    assert "with ddp.main_first():\n    if not see():\n        os.system" in new
    assert "broadcast" not in new


@pytest.mark.parametrize("body", LEFT)
def test_left_alone(body: str) -> None:
    assert converted(body) == _HEAD + body


_ASKING = "import getpass\nimport sys\nimport torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"


def test_a_handler_asks_nobody_and_says_so() -> None:
    text = "try:\n    net(x)\nexcept KeyboardInterrupt:\n    if input('save? ') == 'y':\n        print(1)\n"
    conversion = convert_source(_ASKING + text, "train.py", Options(select=frozenset({"DDP022"})))
    assert conversion.new_text == _ASKING + text
    assert ["input('save? ') if ddp.is_main()" in note.todo for note in conversion.notes] == [True]


@pytest.mark.parametrize(
    ("kind", "noted"), [(" EOFError", True), ("", True), (" (OSError, Exception)", True), (" ValueError", False)]
)
def test_an_end_of_input_that_the_script_goes_on_from_is_noted(kind: str, noted: bool) -> None:
    text = f"try:\n    n = int(input())\nexcept{kind}:\n    n = 3\n"
    conversion = convert_source(_ASKING + text, "train.py", Options(select=frozenset({"DDP022"})))
    assert "ddp.broadcast(ddp.main_only(input)())" in conversion.new_text
    assert len(conversion.notes) == noted


def test_a_test_that_is_rank_0_s_as_a_whole_is_broadcast_once() -> None:
    text = (
        "import os\nimport time\nstart = time.time()\n"
        "if time.time() - start > 3 and os.path.exists('stop') and input('stop? ') == 'y':\n    net(1)\n"
    )
    conversion = convert_source(_ASKING + text, "train.py", Options())
    assert conversion.new_text.count("ddp.broadcast(") == 1
    assert "os.path.exists('stop') and ddp.main_only(input)('stop? ') == 'y'):" in conversion.new_text


def test_what_is_typed_at_a_question_that_shows_the_time_is_shared_once() -> None:
    text = "import time\nanswer = input(time.ctime())\nif answer == 'y':\n    net(1)\n"
    assert convert_source(_HEAD + text, "train.py", Options()).new_text.count("ddp.broadcast(") == 1


@pytest.mark.parametrize("asked", ["input", "plt.ginput", "plt.waitforbuttonpress"])
def test_rank_0_asks(asked: str) -> None:
    text = f"import matplotlib.pyplot as plt\nwhile not {asked}():\n    net(1)\n"
    conversion = convert_source(_ASKING + text, "train.py", Options(select=frozenset({"DDP022"})))
    assert f"while not ddp.broadcast(ddp.main_only({asked})()):" in conversion.new_text


@pytest.mark.parametrize(("source", "noted"), [("0", 1), ("'/dev/video0'", 1), ("'film.mp4'", 0), ("path", 0)])
def test_a_camera_has_one_process_to_give_its_pictures_to(source: str, noted: int) -> None:
    text = f"import cv2\nprint(net(cv2.VideoCapture({source}).read()))\n"
    notes = convert_source(_ASKING + text, "train.py", Options(select=frozenset({"DDP022"}))).notes
    assert [note.what.startswith("a camera gives its pictures to one process") for note in notes] == [True] * noted


def test_what_an_imported_file_asks_when_it_is_started_doesn_t_matter() -> None:
    files = {
        "train.py": _ASKING.replace("import sys\n", "import sys\nimport data\n") + "data.load()\n",
        "data.py": "def load():\n    return input()\nif __name__ == '__main__':\n    input()\n",
    }
    done = convert_files(files, ["train.py"], Options())["data.py"]
    assert "return ddp.broadcast(ddp.main_only(input)())" in done.new_text
    assert done.new_text.endswith("    input()\n")
    assert not done.notes


def test_what_is_asked_while_arguments_are_parsed_is_noted() -> None:
    """There are no ranks yet: each process would ask, and broadcast to itself."""
    files = {
        "train.py": "import torch.nn as nn\nfrom options import args\nnn.DataParallel(nn.Linear(4, 2))(args.x)\n",
        "options.py": "import argparse\n\ndef complete(args):\n    args.name = input('name? ')\n\n"
        "args = argparse.ArgumentParser().parse_args()\ncomplete(args)\n",
    }
    done = convert_files(files, ["train.py"], Options())
    assert done["options.py"].new_text == files["options.py"]
    assert [(note.rule, note.span.start.line) for note in done["options.py"].notes] == [("DDP022", 4)]


def test_what_is_handed_on_may_ask_behind_the_launch_as_well() -> None:
    files = {
        "train.py": "import torch.nn as nn\nfrom options import args, complete\n"
        "net = nn.DataParallel(nn.Linear(4, 2))\n"
        "hooks = []\nhooks.append(complete)\nfor each in hooks:\n    each(args)\n",
        "options.py": "import argparse\n\ndef complete(args):\n    args.name = input('name? ')\n\n"
        "args = argparse.ArgumentParser().parse_args()\ncomplete(args)\n",
    }
    done = convert_files(files, ["train.py"], Options())["options.py"]
    assert "args.name = ddp.broadcast(ddp.main_only(input)('name? '))\n" in done.new_text


def test_what_is_asked_above_the_start_is_left() -> None:
    script = _HEAD.rpartition("net =")[0] + (
        "import argparse\nimport time\ndef main(now):\n    net = nn.DataParallel(nn.Linear(4, 2))\n    {}net(now)\n"
        "if __name__ == '__main__':\n    args = argparse.ArgumentParser().parse_args()\n    now = time.time()\n    {}"
        "main(now)\n"
    )
    test = "if time.time() > 9:\n        {} = 1\n    "
    for inside, above in (("", test.format("now")), (test.format("now"), "")):
        text = convert_source(script.format(inside, above), "train.py", Options(select=frozenset({"DDP018"}))).new_text
        assert ("ddp.broadcast" in text) == bool(inside)
