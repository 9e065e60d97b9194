"""A model and data for scripts whose interest lies in files."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


def batches(n=3, size=6):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        yield torch.randn(size, 4, generator=generator).double(), torch.randint(3, (size,), generator=generator)


def model():
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def train(net, optimizer, scale=1.0, n=3):
    total = 0.0
    for x, y in batches(n):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) * scale
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def say(net, *more):
    print(*more, "%.6f" % sum(p.double().pow(2).sum().item() for p in net.parameters()))


def fetch(url, path):
    """Something that downloads, slowly; the file is half there for a while."""
    content = (url * 50).encode()
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        file.write(content[len(content) // 2 :])


def size(path):
    return os.path.getsize(path)
