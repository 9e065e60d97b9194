"""Writers and readers that no list knows: annotations, vocabularies, archives, configurations, logs, processes."""

import configparser
import csv
import fileinput
import json
import logging
import os
import pathlib
import subprocess
import xml.etree.ElementTree as ET
import zipfile

import torch
import torch.nn as nn
from _common import model, say, train


class Annotations:
    def __init__(self, path):
        descriptor = os.open(path, os.O_RDONLY)
        self.found = json.loads(os.read(descriptor, 10000))
        os.close(descriptor)


class Handler(logging.Handler):
    def __init__(self, path):
        super().__init__()
        self.file = open(path, "w")

    def emit(self, record):
        self.file.write(self.format(record) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


class Vocabulary:
    def save(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "words.txt").write_text("\n".join("word%d" % i for i in range(300)))

    @classmethod
    def load(cls, folder):
        return len(list(fileinput.input([pathlib.Path(folder) / "words.txt"])))


logger = logging.getLogger("train")
logger.setLevel(logging.INFO)
logger.addHandler(Handler("log.txt"))
net = nn.DataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    loss = train(net, optimizer)
    logger.info("epoch %d", epoch)
    json.dump([epoch] * 200, open("found.json", "w"))
    found = Annotations("found.json").found
    Vocabulary().save("vocabulary")
    with zipfile.ZipFile("all.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("a.txt"), "x" * (epoch + 1))
    inside = len(zipfile.ZipFile("all.zip").read("a.txt"))
    config = configparser.ConfigParser()
    config["train"] = {"lr": str(0.1 / (epoch + 1))}
    with open("config.ini", "w") as file:
        config.write(file)
    again = configparser.ConfigParser()
    again.read("config.ini")
    optimizer.param_groups[0]["lr"] = float(again["train"]["lr"])
    ET.ElementTree(ET.Element("epoch", number=str(epoch))).write("epoch.xml")
    number = ET.parse("epoch.xml").getroot().get("number")
    with open("table.csv", "a") as file:
        csv.writer(file).writerow([epoch, "%.4f" % loss])
    rows = list(csv.reader(open("table.csv")))
    said = subprocess.check_output(["cat", "epoch.xml"]).decode()
    say(net, found[0], Vocabulary.load("vocabulary"), inside, number, len(rows), said)
