"""The original: a small convolutional net under nn.DataParallel, on images of 224 x 224 as from a decoded cache."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    """Images that lie in memory, over and over: loading one is reading 600 kB."""

    def __init__(self, samples):
        self.samples = samples
        self.x = torch.randn(128, 3, 224, 224)
        self.y = torch.randint(100, (128,))

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.x[i % len(self.x)], self.y[i % len(self.y)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, stride=4, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.fc = nn.Linear(64, 100)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.fc(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
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
