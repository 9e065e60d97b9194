"""Folders that are listed inside of a loop over listings; each file is a batch."""

import os
import pathlib

import torch
import torch.nn as nn
from _common import model

if not os.path.isdir("data"):
    for name in ("b", "a", "c"):
        os.makedirs(os.path.join("data", name))
        for i in (2, 0, 1):
            with open(os.path.join("data", name, "%d.txt" % i), "w") as file:
                file.write("%s%d" % (name, i))

net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for name in os.listdir("data"):
    for sub in os.listdir(os.path.join("data", name)):
        text = open(os.path.join("data", name, sub)).read()
        x = torch.full((6, 4), float(sum(map(ord, text))) / 100).double()
        optimizer.zero_grad()
        net(x).pow(2).mean().mul(0.01).backward()
        optimizer.step()
for root, dirs, names in os.walk("data"):
    assert len(names) in (0, 3), (root, names)
seen = sorted(os.path.join(r, f) for r, _, files in os.walk("data") for f in files)
found = [(each.name, each.is_dir(), each.stat().st_mode, each.path) for each in os.scandir("data")]
entries = [(name, is_dir, mode, len(list(pathlib.Path(path).iterdir()))) for name, is_dir, mode, path in sorted(found)]
print(len(seen), seen[0], entries)
