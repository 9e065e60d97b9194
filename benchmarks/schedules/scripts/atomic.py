"""Temporary files that take their place, locks, and handlers for what is there already."""

import errno
import os
import tempfile

import torch
import torch.nn as nn
from _common import model, say, train

net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    train(net, optimizer)
    try:
        os.makedirs("out")
        made = True
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        made = False
    descriptor, name = tempfile.mkstemp(dir="out")
    with os.fdopen(descriptor, "w") as file:
        file.write("epoch %d" % epoch)
    os.chmod(name, 0o644)
    os.replace(name, "out/latest.txt")
    with tempfile.NamedTemporaryFile("w", dir="out", delete=False) as part:
        part.write("kept %d" % epoch)
    os.rename(part.name, "out/kept.txt")
    try:
        lock = os.open("out/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.close(lock)
        locked = True
    except FileExistsError:
        locked = False
    try:
        text = open("out/gone%d.txt" % epoch).read()
    except FileNotFoundError:
        text = "none"
    with tempfile.TemporaryDirectory() as own:
        with open(os.path.join(own, "x"), "w") as file:
            file.write("x" * 100)
        length = len(open(os.path.join(own, "x")).read())
    say(net, epoch, made, locked, text, length, open("out/latest.txt").read(), sorted(os.listdir("out")))
    if epoch == 1:
        os.remove("out/lock")
