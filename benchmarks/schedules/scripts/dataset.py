"""torchvision's own way with a data set: look, fetch, unpack, read (fit for two machines)."""

import hashlib
import os
import tarfile

import torch
import torch.nn as nn
from _common import fetch, model, say
from torch.utils.data import DataLoader, Dataset


def download_url(url, root, filename):
    os.makedirs(root, exist_ok=True)
    inner = os.path.join(root, "inner.txt")
    fetch(url, inner)
    with tarfile.open(os.path.join(root, filename), "w:gz") as tar:
        tar.add(inner, arcname="data/inner.txt", filter=_plain)
    os.remove(inner)


def _plain(info):
    info.mtime = 0
    return info


def check_integrity(path):
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return len(hashlib.md5(file.read()).hexdigest()) == 32


class Digits(Dataset):
    def __init__(self, root, download=True):
        self.root = root
        if download:
            self.download()
        if not check_integrity(os.path.join(root, "data/inner.txt")):
            raise RuntimeError("not found")
        text = open(os.path.join(root, "data/inner.txt")).read()
        self.rows = torch.tensor([ord(c) for c in text[:48]]).double().view(12, 4) / 100

    def download(self):
        path = os.path.join(self.root, "data/inner.txt")
        if check_integrity(path):
            return
        archive = os.path.join(self.root, "data.tar.gz")
        if not check_integrity(archive):
            download_url("abcdefg", self.root, "data.tar.gz")
        tar = tarfile.open(archive, "r:gz")
        tar.extractall(self.root)
        tar.close()
        os.remove(archive)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], i % 3


loader = DataLoader(Digits("root"), batch_size=5)
net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    say(net, epoch)
