"""The original: segmentation under nn.DataParallel, 21 classes for each pixel of 8 images of 256 x 256."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    """A few images with a class for each pixel, or 255 where nobody knows, over and over."""

    def __init__(self, samples):
        self.samples = samples
        self.x = torch.randn(64, 3, 256, 256)
        self.y = torch.randint(21, (64, 256, 256))
        self.y[:, :8] = 255

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.x[i % len(self.x)], self.y[i % len(self.y)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Conv2d(32, 21, 1)

    def forward(self, x):
        size = x.shape[2:]
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.head(F.relu(self.conv3(x)))
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1464)
    parser.add_argument("--batch-size", type=int, default=8)
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
        labeled = 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = net(x)
            loss = F.cross_entropy(out, y, ignore_index=255)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            valid = y != 255
            correct += ((out.argmax(1) == y) & valid).sum().item()
            labeled += valid.sum().item()
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}, pixel accuracy {correct / labeled:.4f}")


if __name__ == "__main__":
    main()
