"""A file that stops the run, a count that goes through a file, a log that is read back, threads that save."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
from _common import model, say, train


def save(path, text):
    with open(path, "w") as file:
        file.write(text)


net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with ThreadPoolExecutor(2) as pool:
    for epoch in range(20):
        loss = train(net, optimizer)
        saved = [pool.submit(save, "out%d.txt" % i, "%d" % (epoch * i)) for i in range(3)]
        for each in saved:
            each.result()
        with open("log.txt", "a+") as file:
            file.write("%d %.4f\n" % (epoch, loss))
            file.seek(0)
            lines = file.readlines()
        if len(lines) == 3:
            with open("stop", "w"):
                pass
        say(net, epoch, len(lines), [open("out%d.txt" % i).read() for i in range(3)])
        if os.path.exists("stop"):
            os.remove("stop")
            break
print(os.path.getsize("log.txt"), os.path.exists("stop"))
