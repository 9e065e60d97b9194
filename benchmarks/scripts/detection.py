"""The original: detection under nn.DataParallel, on images that are decoded and augmented, with a list of boxes each."""

import argparse
import random
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    """Compressed images, over and over, each with one to five boxes: cut, flipped and normalised as they are loaded."""

    def __init__(self, samples):
        self.samples = samples
        generator = np.random.default_rng(0)
        coarse = generator.integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
        images = coarse.repeat(16, 1).repeat(16, 2) // 2 + generator.integers(0, 8, (32, 256, 256, 3), dtype=np.uint8)
        self.files = [zlib.compress(image.tobytes()) for image in images]
        corners = [generator.uniform(0, 0.7, (1 + number % 5, 2)) for number in range(32)]
        self.boxes = [torch.tensor(np.concatenate([each, each + 0.3], 1), dtype=torch.float32) for each in corners]

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        pixels = np.frombuffer(zlib.decompress(self.files[i % 32]), np.uint8).reshape(256, 256, 3)
        top, left = random.randrange(33), random.randrange(33)
        image = torch.from_numpy(pixels[top : top + 224, left : left + 224].transpose(2, 0, 1).copy()).float()
        boxes = self.boxes[i % 32].clone()
        if random.random() < 0.5:
            image, boxes[:, [0, 2]] = image.flip(2), 1 - boxes[:, [2, 0]]
        return (image - image.mean((1, 2), keepdim=True)) / 64, boxes


def collate(samples):
    images, boxes = zip(*samples)
    return torch.stack(images), list(boxes)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, stride=4, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, stride=4, padding=1)
        self.head = nn.Conv2d(64, 4, 1)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.head(x).flatten(2).transpose(1, 2)


def box_loss(out, boxes):
    """Of each box, how far the nearest answer for its image is; a mean over images. And how many are near, of all."""
    nearest = [torch.cdist(each, answers).min(1).values for each, answers in zip(boxes, out)]
    loss = torch.stack([each.mean() for each in nearest]).mean()
    return loss, sum(int((each < 0.2).sum()) for each in nearest), sum(map(len, boxes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Data(args.samples)
    loader = DataLoader(
        data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, collate_fn=collate
    )
    net = nn.DataParallel(Net()).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(args.epochs):
        total_loss = 0.0
        near = total = 0
        for x, boxes in loader:
            x, boxes = x.to(device), [each.to(device) for each in boxes]
            optimizer.zero_grad()
            out = net(x)
            loss, close, count = box_loss(out, boxes)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            near += close
            total += count
        print(f"epoch {epoch}: loss {total_loss / len(loader):.4f}, found {near / total:.4f}")


if __name__ == "__main__":
    main()
