"""Gradients of two batches to a step, Nesterov, NumPy's cutout in worker processes, an average of the weights."""
import argparse
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count, cutout):
        chance = np.random.RandomState(count)
        self.y = chance.randint(0, 4, count)
        self.x = (chance.randn(count, 1, 8, 8) * 0.5 + self.y[:, None, None, None] / 2).astype(np.float32)
        self.cutout = cutout

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i].copy()
        if self.cutout:
            top, left = np.random.randint(0, 6, 2)
            x[:, top:top + 3, left:left + 3] = 0
        return torch.from_numpy(x), int(self.y[i])


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.norm = nn.GroupNorm(3, width)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        return self.fc(self.drop(F.relu(self.norm(self.conv(x))).mean((2, 3))))


@torch.no_grad()
def update_average(average, model, decay=0.9):
    for old, new in zip(average.parameters(), model.parameters()):
        old.mul_(decay).add_(new, alpha=1 - decay)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(x.cuda()).argmax(1) == y.cuda()).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--bs', type=int, default=8)
    parser.add_argument('--accum', type=int, default=2)
    parser.add_argument('--lr', type=float, default=0.1)
    parser.add_argument('--smoothing', type=float, default=0.05)
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--seed', type=int, default=21)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    train_loader = DataLoader(Pictures(64, True), args.bs, shuffle=True, num_workers=args.workers, drop_last=True)
    test_loader = DataLoader(Pictures(24, False), 12)
    net = Net().cuda()
    average = copy.deepcopy(net)
    net = nn.DataParallel(net)
    decay = [p for name, p in net.named_parameters() if p.ndim > 1]
    plain = [p for name, p in net.named_parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD([{'params': decay, 'weight_decay': 1e-2}, {'params': plain, 'weight_decay': 0.0}],
                                lr=args.lr, momentum=0.8, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    net.train()
    for epoch in range(args.epochs):
        optimizer.zero_grad()
        losses = []
        for i, (x, y) in enumerate(train_loader):
            x, y = x.cuda(), y.cuda()
            loss = F.cross_entropy(net(x), y, label_smoothing=args.smoothing) / args.accum
            loss.backward()
            losses.append(loss.item() * args.accum)
            if (i + 1) % args.accum == 0:
                optimizer.step()
                optimizer.zero_grad()
                update_average(average, net.module)
        scheduler.step()
        print('epoch %d: loss %.4f, accuracy %.4f, of the average %.4f' % (
            epoch, sum(losses) / len(losses), accuracy(net, test_loader), accuracy(average, test_loader)))
    torch.save({'net': net.module.state_dict(), 'average': average.state_dict(), 'losses': losses}, 'nets.pt')


if __name__ == '__main__':
    main()
