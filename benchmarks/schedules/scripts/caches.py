"""Caches in a loop, of several sets: built and written where they are not there."""

import os
import pickle

import torch
import torch.nn as nn
from _common import model, say, train

net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = {}
for again in range(2):
    for split in ("train", "val", "test"):
        cache = "cache_%s.pkl" % split
        if os.path.exists(cache):
            with open(cache, "rb") as file:
                data[split] = pickle.load(file)
        else:
            data[split] = {"scale": len(split) / 4, "rows": list(range(500))}
            with open(cache, "wb") as file:
                pickle.dump(data[split], file)
        train(net, optimizer, scale=data[split]["scale"], n=1)
        say(net, split, len(data[split]["rows"]))
