"""A download to a temporary file that takes its place, and a folder that is not there."""

import os

import torch
import torch.nn as nn
from _common import fetch, model, say, train

home = os.path.abspath("hub")
if not os.path.exists(home):
    os.makedirs(home)
path = os.path.join(home, "weights.txt")
if not os.path.exists(path):
    partial = path + ".partial"
    fetch("0123", partial)
    os.rename(partial, path)
scale = len(open(path).read()) / 200
net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
resumed = os.path.isdir("runs") and len(os.listdir("runs"))
for epoch in range(2):
    train(net, optimizer, scale)
    os.makedirs("runs", exist_ok=True)
    with open("runs/%d.txt" % epoch, "w") as file:
        file.write(str(epoch))
    say(net, epoch, scale, resumed)
