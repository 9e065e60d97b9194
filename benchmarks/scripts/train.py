"""The original: a classifier under nn.DataParallel, one of several; prints what a step took, as JSON."""

import argparse
import json
import resource
import statistics
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    """A few samples that lie in memory, over and over."""

    def __init__(self, samples, shape, classes, labels=()):
        self.samples = samples
        self.x = torch.randn(128, *shape)
        self.y = torch.randint(classes, (128, *labels))

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.x[i % len(self.x)], self.y[i % len(self.y)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1, self.norm1 = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
        self.linear2, self.norm2 = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.linear2(F.relu(self.norm1(self.linear1(x))))))


def mnist():
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


def many():
    """Of 362 small parameters."""
    return nn.Sequential(*[Block(64) for _ in range(60)], nn.Linear(64, 10))


def images():
    layers = [nn.Conv2d(3, 16, 7, 4, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100))


def segmentation():
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(32, 21, 1), nn.Upsample(scale_factor=4, mode="bilinear"))


# The model, samples' shape, classes, labels' shape, rows of a batch.
CASES = {
    "mnist": (mnist, (1, 28, 28), 10, (), 64),
    "many": (many, (64,), 10, (), 64),
    "images": (images, (3, 224, 224), 100, (), 64),
    "segmentation": (segmentation, (3, 256, 256), 21, (256, 256), 8),
    "mixup": (images, (3, 224, 224), 100, (), 64),
}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


def mixed(x, y, mixes):
    """The batch, perhaps each sample mixed with another one, and how its loss is computed."""
    if not mixes:
        return x, lambda out: F.cross_entropy(out, y)
    lam, perm = np.random.beta(0.2, 0.2), torch.randperm(x.size(0), device=x.device)
    loss = lambda out: lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[perm])
    return lam * x + (1 - lam) * x[perm], loss


def report(ends):
    """What a step took: the median of those of 16 steps each, without the first ones; and the most memory held."""
    took = [(last - first) / 16 for first, last in zip(ends[16::16], ends[32::16])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
    print(json.dumps({"ms": statistics.median(took) * 1e3, "peak_mb": peak / 1e6}))


def fit(net, loader, device, args):
    """Train; returns when each step ended."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    total_loss, correct, ends = 0.0, 0, []
    for x, y in loader:
        x, loss_of = mixed(x.to(device), y.to(device), args.case == "mixup")
        optimizer.zero_grad()
        out = net(x)
        loss = loss_of(out)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        correct += (out.argmax(1) == y.to(device)).sum().item()
        ends.append(time.perf_counter())
        if len(ends) == args.steps:
            break
    return ends


def main():
    args = arguments()
    torch.manual_seed(0)
    np.random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    make, shape, classes, labels, rows = CASES[args.case]
    data = Data((args.steps + 16) * rows, shape, classes, labels)  # loaders are ahead, and no epoch shall end
    loader = DataLoader(data, batch_size=rows, shuffle=True, num_workers=args.workers)
    net = nn.DataParallel(make()).to(device)
    report(fit(net, loader, device, args))


if __name__ == "__main__":
    main()
