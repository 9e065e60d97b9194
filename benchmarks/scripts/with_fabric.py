"""The same training with Lightning Fabric, the batch size divided by the ranks."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=2048)
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
fabric.launch()
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


data = TensorDataset(torch.randn(args.samples, 1, 28, 28), torch.randint(10, (args.samples,)))
loader = DataLoader(data, batch_size=args.batch_size // fabric.world_size, shuffle=True)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
net, optimizer = fabric.setup(net, optimizer)
loader = fabric.setup_dataloaders(loader)


def run_epoch():
    total_loss = 0.0
    correct = 0
    for x, y in loader:
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        fabric.backward(loss)
        optimizer.step()
        total_loss += loss.item()
        correct += (out.argmax(1) == y).sum().item()
    totals = fabric.all_reduce(torch.tensor([total_loss / fabric.world_size, correct], dtype=torch.float64), reduce_op="sum")
    return (totals[0] / len(loader)).item(), (totals[1] / len(data)).item()
