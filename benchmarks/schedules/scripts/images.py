"""Dumps of samples, read back through lists; the older ones are removed."""

import glob
import os
import shutil

import torch
import torch.nn as nn
from _common import model, say, train


class Image:
    def __init__(self, values):
        self.values = values

    def save(self, path):
        with open(path, "w") as file:
            for value in self.values:
                file.write("%.6f\n" % value)

    @classmethod
    def load(cls, path):
        with open(path) as file:
            return cls([float(line) for line in file])


net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(4):
    train(net, optimizer)
    folder = "samples/epoch%d" % epoch
    os.makedirs(folder, exist_ok=True)
    files = []
    for i, row in enumerate(net.module.weight.tolist()):
        files.append(os.path.join(folder, "%d.txt" % i))
        Image(row).save(files[-1])
    mean = sum(sum(Image.load(f).values) for f in files) / len(files)
    say(net, epoch, "%.5f" % mean, sorted(os.path.basename(f) for f in glob.glob(folder + "/*.txt")))
    if epoch >= 2:
        shutil.rmtree("samples/epoch%d" % (epoch - 2))
    os.remove(files[0])
print(sorted(os.listdir("samples")))
