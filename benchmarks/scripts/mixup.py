"""The original: mixup under nn.DataParallel, so that each image is mixed with one of the whole batch."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from images import Data, Net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    np.random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Data(args.samples)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    net = nn.DataParallel(Net()).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(args.epochs):
        total_loss = 0.0
        correct = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            lam = np.random.beta(0.2, 0.2)
            perm = torch.randperm(x.size(0), device=device)
            x = lam * x + (1 - lam) * x[perm]
            optimizer.zero_grad()
            out = net(x)
            loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[perm])
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            guess = out.argmax(1)
            correct += (lam * (guess == y).sum() + (1 - lam) * (guess == y[perm]).sum()).item()
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}, accuracy {correct / len(data):.4f}")


if __name__ == "__main__":
    main()
