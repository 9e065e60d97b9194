"""Checkpoints by epoch, the last two kept, the best one copied, and the run resumed from the latest."""

import glob
import os
import shutil

import torch
import torch.nn as nn
from _common import model, say, train


def run(epochs):
    net = nn.DataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    start, best = 0, float("inf")
    found = sorted(glob.glob("checkpoints/epoch*.pt"), key=os.path.getmtime)
    if found:
        checkpoint = torch.load(found[-1])
        net.module.load_state_dict({k: checkpoint[k] for k in ("weight", "bias")})
        start, best = int(checkpoint["epoch"]) + 1, float(checkpoint["best"])
    for epoch in range(start, epochs):
        loss = train(net, optimizer)
        is_best = loss < best
        best = min(best, loss)
        if not os.path.isdir("checkpoints"):
            os.mkdir("checkpoints")
        path = "checkpoints/epoch%d.pt" % epoch
        state = {**net.module.state_dict(), "epoch": torch.tensor(epoch), "best": torch.tensor(best).double()}
        torch.save(state, path)
        if is_best:
            shutil.copyfile(path, "checkpoints/best.pt")
        for old in sorted(os.listdir("checkpoints")):
            if old.startswith("epoch") and int(old[5:-3]) < epoch - 1:
                os.unlink(os.path.join("checkpoints", old))
        say(net, epoch, is_best, sorted(os.listdir("checkpoints")))
    say(net, "best", int(torch.load("checkpoints/best.pt")["epoch"]))


run(3)
run(5)
