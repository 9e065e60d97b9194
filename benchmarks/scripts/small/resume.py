"""Trains, starts anew from its own checkpoint and goes on; loads with torchvision's transforms in worker processes."""
import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Tiles(Dataset):
    def __init__(self, count, transform=None):
        self.labels = torch.arange(count) % 3
        chance = torch.Generator().manual_seed(8)
        self.tiles = torch.rand(count, 3, 10, 10, generator=chance) * 0.5 + self.labels.view(-1, 1, 1, 1) / 6
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        tile = self.tiles[i]
        return (self.transform(tile) if self.transform else tile), self.labels[i]


class Trainer:
    def __init__(self, args):
        self.args = args
        augment = transforms.Compose([transforms.RandomHorizontalFlip(p=0.5), transforms.RandomErasing(p=0.4)])
        self.loader = DataLoader(Tiles(45, augment), args.batch_size, shuffle=True, num_workers=args.workers)
        self.val = DataLoader(Tiles(15), 15)
        net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                            nn.Dropout(0.25), nn.Linear(128, 3))
        self.net = nn.DataParallel(net).cuda()
        self.optimizer = torch.optim.NAdam(self.net.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 1 / (1 + epoch))
        self.epoch = 0

    def load(self, path):
        state = torch.load(path)
        self.net.load_state_dict(state['net'])
        self.optimizer.load_state_dict(state['optimizer'])
        self.scheduler.load_state_dict(state['scheduler'])
        self.epoch = state['epoch'] + 1
        print('goes on with epoch', self.epoch)

    def save(self, path):
        torch.save({'net': self.net.state_dict(), 'optimizer': self.optimizer.state_dict(),
                    'scheduler': self.scheduler.state_dict(), 'epoch': self.epoch}, path)

    def fit(self, until):
        while self.epoch < until:
            self.net.train()
            mean = 0.0
            for x, y in self.loader:
                loss = nn.functional.cross_entropy(self.net(x.cuda()), y.cuda())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                mean += loss.item() / len(self.loader)
            self.scheduler.step()
            print('epoch %d: loss %.4f, validation %.4f' % (self.epoch, mean, self.validate()))
            self.save(os.path.join(self.args.out, 'last.pt'))
            self.epoch += 1

    def validate(self):
        self.net.eval()
        with torch.no_grad():
            return sum(nn.functional.cross_entropy(self.net(x.cuda()), y.cuda()).item() for x, y in self.val)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=15)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--seed', type=int, default=23)
    parser.add_argument('--out', default='runs')
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    os.makedirs(args.out, exist_ok=True)
    Trainer(args).fit(2)
    again = Trainer(args)
    again.load(os.path.join(args.out, 'last.pt'))
    again.fit(4)


if __name__ == '__main__':
    main()
