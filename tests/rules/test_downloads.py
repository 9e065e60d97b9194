"""Downloads and unpacking: "if it is missing, fetch it" is one step, of one rank of each machine."""

from __future__ import annotations

import re
import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import os, subprocess, tarfile, tempfile, urllib.request, zipfile
import torch.nn as nn
from torchvision import datasets
from torchvision.datasets.utils import download_url
net = nn.DataParallel(nn.Linear(4, 2))
"""
_FILE_RULES = frozenset({"DDP008", "DDP011", "DDP012", "DDP018"})

#: What is marked by > comes under `ddp.main_first()`, and «a function» is rank 0's.
STEPS = {
    "a question": (
        "> if not os.path.exists(path):\n>     os.makedirs(folder)\n>     urllib.request.urlretrieve(url, path)\n"
        ">     os.remove(old)\n"
    ),
    "a question for each of several": (
        "> for name in names:\n>     if not os.path.exists(name):\n"
        ">         urllib.request.urlretrieve(url + name, name)\n"
    ),
    "a function that fetches": (
        'def fetch(path):\n    with open(path + ".log", "w") as log:\n        log.write("fetching")\n'
        "    urllib.request.urlretrieve(url, path)\n> if not os.path.exists(path):\n>     fetch(path)\n"
    ),
    "a function that looks itself, called in several places": (
        "@ddp.main_first()\ndef fetch(path):\n    if os.path.exists(path):\n        return\n"
        "    urllib.request.urlretrieve(url, path)\nfetch(path)\nif names:\n    fetch(other)\n"
    ),
    "a function of several steps": (
        "@ddp.main_first()\ndef fetch(folder):\n    path = os.path.join(folder, 'a.zip')\n"
        "    if not os.path.exists(path):\n"
        "        urllib.request.urlretrieve(url, path)\n    other = os.path.join(folder, 'b.zip')\n"
        "    if not os.path.exists(other):\n        urllib.request.urlretrieve(url, other)\nfetch('data')\n"
    ),
    "a function that does more than fetch": (
        "def fetch(path, other):\n>     if not os.path.exists(path):\n>         urllib.request.urlretrieve(url, path)\n"
        "    print('one')\n>     if not os.path.exists(other):\n>         urllib.request.urlretrieve(url, other)\n"
        "    for name in os.listdir(path):\n        print(name)\n        print(len(name))\n    print('done')\n"
        "    return path\nfetch('a', 'b')\n"
    ),
    "a generator of several steps": (
        "def fetch(folder):\n    done = yield folder\n>     if not os.path.exists(folder):\n"
        ">         urllib.request.urlretrieve(url, folder)\n    path = folder + 'b'\n"
        ">     if not os.path.exists(path):\n>         urllib.request.urlretrieve(url, path)\nlist(fetch('data'))\n"
    ),
    "a function whose result is used in one of several places": (
        "def fetch(path):\n    if os.path.exists(path):\n        return path\n"
        "    return urllib.request.urlretrieve(url, path)\n> fetch(path)\n> fetch(url)\nif names:\n"
        ">     other = fetch(other)\n"
    ),
    "a method that looks itself": (
        "class Digits:\n    def __init__(self, root, download=False):\n        self.root = root\n"
        "        if download:\n>             self.download()\n        if not self.is_there():\n"
        '            raise RuntimeError("missing")\n    def is_there(self):\n'
        "        return os.path.exists(self.root)\n    def download(self):\n        if self.is_there():\n"
        "            return\n        os.makedirs(self.root)\n"
        "        data = urllib.request.urlretrieve(url, self.root)\n    def __getitem__(self, i):\n"
        '        return i\nDigits("data", download=True)\n'
    ),
    "no question": "> «urllib.request.urlretrieve»(url, path)\n",
    "unpacking": "> with «zipfile.ZipFile»(path) as archive:\n>     archive.extract(a)\n>     archive.extract(b)\n",
    "unpacking and reading": (
        "archive = tarfile.open(path)\n> «archive.extractall»(folder)\nprint(archive.getnames())\n"
    ),
    "a function that looks by itself": "> download_url(url, folder)\n",
    "names that are bound anew where they are used": (
        "> if not os.path.exists(a):\n>     here = os.getcwd()\n>     archive = tarfile.open(a)\n>     os.chdir(b)\n"
        ">     archive.extractall()\n>     os.chdir(here)\nfor b in names:\n    archive, others = tarfile.open(b), 0\n"
        "    with open(b) as here:\n        print(archive.getnames(), here)\n"
    ),
    "several that one name holds": (
        "archive = tarfile.open(path)\n> «archive.extractall»(folder)\narchive = zipfile.ZipFile(path)\n"
        "> «archive.extractall»(folder)\n"
    ),
    "beside a class that calls the model, and that nobody calls": (
        "class Step:\n    def __call__(self, x):\n        return net(x)\n> if not os.path.exists(path):\n"
        ">     urllib.request.urlretrieve(url, path)\n>     log(url)\n"
    ),
    "a name that is used later": (
        "if not os.path.exists(path):\n>     «urllib.request.urlretrieve»(url, path)\n    is_new = True\nelse:\n"
        "    is_new = False\nprint(is_new)\n"
    ),
    "the script's own class of one of torchvision's data sets": (
        "class Few(datasets.CIFAR10):\n    def __init__(self, root, download=False):\n"
        '        super().__init__(root, True, None, None, download)\n> data = Few("data", download=True)\n'
    ),
    "a class that hands the question on": (
        "class Few(datasets.CIFAR10):\n    def __init__(self, root, download=False):\n"
        '        super().__init__(root, download=download)\n> data = Few("data", download=True)\n'
    ),
    "folders that it goes to": (
        'def fetch(root):\n    zipped = "b.zip"\n>     if not os.path.exists(zipped):\n'
        '>         os.system("wget %s; unzip %s; mv b %s" % (url, zipped, root))\n'
        'done = 0\n> if not os.path.isdir("raw"):\n>     os.makedirs("raw")\n> if not os.path.exists("raw/a.zip"):\n'
        '>     os.system("wget -O raw/a.zip " + url)\nos.makedirs("rawer")\ndata = os.path.join("in", "b")\n'
        "> try:\n>     os.mkdir(data)\n> except FileExistsError:\n>     pass\nos.mkdir(args.path)\nfetch(data)\n"
    ),
    "a branch that takes all ranks": (
        "if not os.path.exists(path):\n>     «urllib.request.urlretrieve»(url, path)\n    net(x)\n"
    ),
}
LEFT = [
    "try:\n    net(x)\nexcept OSError:\n    urllib.request.urlretrieve(url, path)\n",
    "name, _ = urllib.request.urlretrieve(url)\n",
    "class Images:\n    def __getitem__(self, i):\n        urllib.request.urlretrieve(url, str(i))\nImages()\n",
    "frame.text.str.extract('x')\n",
]


def _conversion(body: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body), "train.py", Options(select=_FILE_RULES))


def _after(marked: str) -> str:
    lines: list[str] = []
    for above, line in zip(["", *marked.splitlines()], marked.splitlines()):
        if line.startswith("> ") and not above.startswith("> "):
            lines.append(" " * (len(line) - 2 - len(line[2:].lstrip())) + "with ddp.main_first():")
        lines.append(f"    {line[2:]}" if line.startswith("> ") else line)
    return re.sub("«(.*?)»", r"ddp.main_only(\1)", "\n".join([*lines, ""]))


@pytest.mark.parametrize("name", STEPS)
def test_one_rank_of_each_machine_fetches(name: str) -> None:
    marked = STEPS[name]
    head = _HEAD.replace("download_url\n", "download_url\nimport dp2ddp_runtime as ddp\n")
    assert _conversion(re.sub(r"(?m)^> |[«»]|^@.*\n", "", marked)).new_text == head + _after(marked)


@pytest.mark.parametrize("body", LEFT)
def test_left_alone(body: str) -> None:
    assert _conversion(body).new_text == _HEAD + body


def test_a_download_while_a_model_is_wrapped_is_noted() -> None:
    body = "other = nn.DataParallel(library.net(download=True))\n"
    conversion = _conversion(body)
    assert ["before the model is wrapped" in note.todo for note in conversion.notes] == [True]
    assert conversion.new_text == _HEAD + body


def test_a_class_fetches_by_itself_where_its_caller_can_not_take_turns() -> None:
    """Its line runs the model, too, which all ranks have to do together."""
    text = "class Few(datasets.CIFAR10):\n    def __init__(self, root, download=False):\n" + (
        '        super().__init__(root, download=download)\nnothing = [net(x) for x in Few("data", download=True)]\n'
    )
    new = convert_source(_HEAD + text, "train.py", Options()).new_text
    assert "        with ddp.main_first():\n            super().__init__(root, download=download)\n" in new
