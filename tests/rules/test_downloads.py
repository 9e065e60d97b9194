"""Downloads and unpacking: "if it is missing, fetch it" is one step, of one rank of each machine."""

from __future__ import annotations

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

#: Before and after.
STEPS = {
    "a question": (
        """
        if not os.path.exists(path):
            os.makedirs(folder)
            urllib.request.urlretrieve(url, path)
            os.remove(old)
        """,
        """
        with ddp.main_first():
            if not os.path.exists(path):
                os.makedirs(folder)
                urllib.request.urlretrieve(url, path)
                os.remove(old)
        """,
    ),
    "questions in each other": (
        """
        if not os.path.isdir(folder):
            if not os.path.isfile(path):
                os.system("wget " + url)
        """,
        """
        with ddp.main_first():
            if not os.path.isdir(folder):
                if not os.path.isfile(path):
                    os.system("wget " + url)
        """,
    ),
    "a question for each of several": (
        """
        for name in names:
            if not os.path.exists(name):
                urllib.request.urlretrieve(url + name, name)
        """,
        """
        with ddp.main_first():
            for name in names:
                if not os.path.exists(name):
                    urllib.request.urlretrieve(url + name, name)
        """,
    ),
    "a function that fetches": (
        """
        def fetch(path):
            with open(path + ".log", "w") as log:
                log.write("fetching")
            urllib.request.urlretrieve(url, path)
        if not os.path.exists(path):
            fetch(path)
        """,
        """
        def fetch(path):
            with open(path + ".log", "w") as log:
                log.write("fetching")
            urllib.request.urlretrieve(url, path)
        with ddp.main_first():
            if not os.path.exists(path):
                fetch(path)
        """,
    ),
    "a method that looks itself": (
        """
        class Digits:
            def __init__(self, root, download=False):
                self.root = root
                if download:
                    self.download()
                if not self.is_there():
                    raise RuntimeError("missing")
            def is_there(self):
                return os.path.exists(self.root)
            def download(self):
                if self.is_there():
                    return
                os.makedirs(self.root)
                data = urllib.request.urlretrieve(url, self.root)
            def __getitem__(self, i):
                return i
        Digits("data", download=True)
        """,
        """
        class Digits:
            def __init__(self, root, download=False):
                self.root = root
                if download:
                    with ddp.main_first():
                        self.download()
                if not self.is_there():
                    raise RuntimeError("missing")
            def is_there(self):
                return os.path.exists(self.root)
            def download(self):
                if self.is_there():
                    return
                os.makedirs(self.root)
                data = urllib.request.urlretrieve(url, self.root)
            def __getitem__(self, i):
                return i
        Digits("data", download=True)
        """,
    ),
    "a handler": (
        """
        try:
            data = load(path)
        except OSError:
            urllib.request.urlretrieve(url, path)
            data = load(path)
        """,
        """
        with ddp.main_first():
            try:
                data = load(path)
            except OSError:
                urllib.request.urlretrieve(url, path)
                data = load(path)
        """,
    ),
    "no question": (
        """
        urllib.request.urlretrieve(url, path)
        """,
        """
        with ddp.main_first():
            ddp.main_only(urllib.request.urlretrieve)(url, path)
        """,
    ),
    "unpacking": (
        """
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        """,
        """
        with ddp.main_first():
            with ddp.main_only(zipfile.ZipFile)(path) as archive:
                archive.extractall(folder)
        """,
    ),
    "unpacking and reading": (
        """
        archive = tarfile.open(path)
        archive.extractall(folder)
        print(archive.getnames())
        """,
        """
        archive = tarfile.open(path)
        with ddp.main_first():
            ddp.main_only(archive.extractall)(folder)
        print(archive.getnames())
        """,
    ),
    "a function that looks by itself": (
        """
        download_url(url, folder)
        """,
        """
        with ddp.main_first():
            download_url(url, folder)
        """,
    ),
    "a name that is used later": (
        """
        if not os.path.exists(path):
            urllib.request.urlretrieve(url, path)
            is_new = True
        else:
            is_new = False
        print(is_new)
        """,
        """
        if not os.path.exists(path):
            with ddp.main_first():
                ddp.main_only(urllib.request.urlretrieve)(url, path)
            is_new = True
        else:
            is_new = False
        print(is_new)
        """,
    ),
    "the script's own class of one of torchvision's data sets": (
        """
        class Few(datasets.CIFAR10):
            def __init__(self, root, download=False):
                super().__init__(root, True, None, None, download)
        data = Few("data", download=True)
        """,
        """
        class Few(datasets.CIFAR10):
            def __init__(self, root, download=False):
                super().__init__(root, True, None, None, download)
        with ddp.main_first():
            data = Few("data", download=True)
        """,
    ),
    "folders that it goes to": (
        """
        def fetch(root):
            zipped = "b.zip"
            if not os.path.exists(zipped):
                os.system("wget %s; unzip %s; mv b %s" % (url, zipped, root))
        if not os.path.isdir("raw"):
            os.makedirs("raw")
        if not os.path.exists("raw/a.zip"):
            os.system("wget -O raw/a.zip " + url)
        os.makedirs("rawer")
        data = os.path.join("in", "b")
        try:
            os.mkdir(data)
        except FileExistsError:
            pass
        os.mkdir("out")
        fetch(data)
        """,
        """
        def fetch(root):
            zipped = "b.zip"
            with ddp.main_first():
                if not os.path.exists(zipped):
                    os.system("wget %s; unzip %s; mv b %s" % (url, zipped, root))
        with ddp.main_first():
            if not os.path.isdir("raw"):
                os.makedirs("raw")
            if not os.path.exists("raw/a.zip"):
                os.system("wget -O raw/a.zip " + url)
        os.makedirs("rawer")
        data = os.path.join("in", "b")
        with ddp.main_first():
            try:
                os.mkdir(data)
            except FileExistsError:
                pass
        os.mkdir("out")
        fetch(data)
        """,
    ),
    "a branch that takes all ranks": (
        """
        if not os.path.exists(path):
            urllib.request.urlretrieve(url, path)
            net(x)
        """,
        """
        if not os.path.exists(path):
            with ddp.main_first():
                ddp.main_only(urllib.request.urlretrieve)(url, path)
            net(x)
        """,
    ),
}
LEFT = [
    "try:\n    net(x)\nexcept OSError:\n    urllib.request.urlretrieve(url, path)\n",
    "name, _ = urllib.request.urlretrieve(url)\n",
    "folder = tempfile.mkdtemp()\nzipfile.ZipFile(path).extractall(folder)\n",
    "class Images:\n    def __getitem__(self, i):\n        urllib.request.urlretrieve(url, str(i))\n",
    "members = zipfile.ZipFile(path).namelist()\n",
    "frame.text.str.extract('x')\n",
]


def _conversion(body: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body), "train.py", Options(select=_FILE_RULES))


@pytest.mark.parametrize("name", STEPS)
def test_one_rank_of_each_machine_fetches(name: str) -> None:
    before, after = STEPS[name]
    head = _HEAD.replace("download_url\n", "download_url\nimport dp2ddp_runtime as ddp\n")
    assert _conversion(before).new_text == head + textwrap.dedent(after)


@pytest.mark.parametrize("body", LEFT)
def test_left_alone(body: str) -> None:
    assert _conversion(body).new_text == _HEAD + body


def test_a_download_while_a_model_is_wrapped_is_noted() -> None:
    body = "other = nn.DataParallel(library.net(download=True))\n"
    conversion = _conversion(body)
    assert ["before the model is wrapped" in note.todo for note in conversion.notes] == [True]
    assert conversion.new_text == _HEAD + body
