"""One file, written and read in turn, renamed, replaced, truncated and removed."""

import json
import os
import shutil
import subprocess

import numpy as np
import torch
import torch.nn as nn
from _common import model, say, train

net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(5):
    loss = train(net, optimizer)
    json.dump({"epoch": epoch, "loss": round(loss, 6)}, open("state.json", "w"))
    state = json.load(open("state.json"))
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + state["epoch"])
    with open("best.tmp", "w") as file:
        file.write("best %d" % epoch)
    os.replace("best.tmp", "best.txt")
    best = open("best.txt").read()
    if epoch % 2:
        os.rename("best.txt", "old.txt")
        shutil.copyfile("old.txt", "copy.txt")
        best += open("copy.txt").read()
        subprocess.run("rm copy.txt", shell=True, check=True)
        os.system("rm old.txt")
    with open("best%d.txt" % (epoch % 2), "w") as file:
        file.write(best)
    os.makedirs("arrays", exist_ok=True)
    np.save("arrays/a.npy", np.full(3, epoch))
    best += str(np.load("arrays/a.npy").sum())
    shutil.rmtree("arrays")
    say(net, epoch, best, os.path.exists("best.txt"), os.path.exists("old.txt"), os.stat("state.json").st_size)
