"""The original: a deep and narrow net under nn.DataParallel, whose 362 parameters are small tensors."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    """A few vectors, over and over."""

    def __init__(self, samples):
        self.samples = samples
        self.x = torch.randn(2048, 64)
        self.y = torch.randint(10, (2048,))

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.x[i % len(self.x)], self.y[i % len(self.y)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1 = nn.Linear(width, width, bias=False)
        self.norm1 = nn.BatchNorm1d(width)
        self.linear2 = nn.Linear(width, width, bias=False)
        self.norm2 = nn.BatchNorm1d(width)

    def forward(self, x):
        out = F.relu(self.norm1(self.linear1(x)))
        return F.relu(x + self.norm2(self.linear2(out)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(64) for _ in range(60)])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Data(args.samples)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    net = nn.DataParallel(Net()).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(args.epochs):
        total_loss = 0.0
        correct = 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = net(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            correct += (out.argmax(1) == y).sum().item()
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}, accuracy {correct / len(data):.4f}")


if __name__ == "__main__":
    main()
