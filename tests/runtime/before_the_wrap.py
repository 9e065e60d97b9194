# What `test_hands` starts: much is done before the wrap, by names that were imported before `setup`.
import json
import os
import shutil
import subprocess
import tarfile
import time
from os import makedirs, remove
from os.path import exists

import dp2ddp_runtime as ddp
import numpy as np
import torch

ddp.setup()
found = [exists("arch.tar"), exists("data")]
if not exists("data"):
    with open("a.txt", "w") as f:
        f.write("inner")
    with tarfile.open("arch.tar", "w") as t:
        t.add("a.txt")
    with tarfile.open("arch.tar") as t:
        t.extractall("data")
    remove("arch.tar")
found.append(open("data/a.txt").read())
for i in range(3):
    json.dump([i], open("state.json", "w"))
    found.append(json.load(open("state.json")))
with open("state.json", "r+") as f:
    found.append(f.read())
    f.write(" ")
for i in range(3):
    with open("grows.txt", "a") as f:
        found.append(f.tell())
        f.write("row")
log = open("log.txt", "w")
log.write("before\n")
more = open("more.txt", "a")
more.write("one ")
name = ddp.broadcast(f"{time.time()}")
makedirs(name)
os.chdir(name)
np.savetxt("x.txt", np.arange(3))
found.append(os.system("exit 3") >> 8)
net = ddp.wrap_model(torch.nn.Linear(2, 2), device_ids=[0, 1])
found.append(exists("x.txt"))
log.write("after\n")
log.close()
more.write("two")
more.close()
with open("../log.txt", "a+") as f:
    f.write("more\n")
    f.seek(0)
    found.append(f.read())
found += [
    subprocess.Popen(["sh", "-c", "exit 3"]).wait(),
    subprocess.call("echo x >> ../prog", shell=True),
    open("../prog").read(),
]
shutil.rmtree("../data")
found.append(exists("../data"))
makedirs("../data")
found.append(os.listdir("../data"))
for told in ddp.gather(json.dumps([found, os.path.basename(os.getcwd()) == name])):
    print(told)
