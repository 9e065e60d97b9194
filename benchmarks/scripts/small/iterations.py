"""Counts iterations rather than epochs, over a sampler of its own that is told the epoch; `random` augments in workers."""
import argparse
import csv
import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler


class EpochSampler(Sampler):
    """Another order in each epoch, from the epoch's number."""

    def __init__(self, count, seed):
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.count, generator=generator).tolist())


class Rows(Dataset):
    def __init__(self, count, noisy):
        chance = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 12, generator=chance)
        self.y = (self.x[:, :4].sum(1) > 0).long() + (self.x[:, 4:8].sum(1) > 0).long()
        self.noisy = noisy

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.noisy:
            x = x + torch.tensor([random.gauss(0, 0.1) for _ in range(12)])
            if random.random() < 0.3:
                x = x * random.choice([0.9, 1.1])
        return x, self.y[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--max-iter', type=int, default=12)
    parser.add_argument('--eval-every', type=int, default=6)
    parser.add_argument('--batch-size', type=int, default=10)
    parser.add_argument('--lr', type=float, default=0.02)
    parser.add_argument('--num-workers', type=int, default=2)
    parser.add_argument('--seed', type=int, default=9)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_set, val_set = Rows(50, True), Rows(30, False)
    sampler = EpochSampler(len(train_set), args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, num_workers=args.num_workers)
    val_loader = DataLoader(val_set, 15)
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 3))
    model = torch.nn.DataParallel(model).cuda()
    criterion = nn.CrossEntropyLoss(reduction='mean')
    optimizer = torch.optim.Adamax(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4, 8], gamma=0.3)

    with open('log.csv', 'w', newline='') as f:
        csv.writer(f).writerow(['iteration', 'loss', 'accuracy'])
    epoch, iteration, running = 0, 0, 0.0
    while iteration < args.max_iter:
        sampler.set_epoch(epoch)
        for x, y in train_loader:
            model.train()
            x, y = x.cuda(), y.cuda()
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            iteration += 1
            running += loss.item()
            if iteration % args.eval_every == 0:
                model.eval()
                correct = 0
                with torch.no_grad():
                    for vx, vy in val_loader:
                        correct += (model(vx.cuda()).argmax(1) == vy.cuda()).sum().item()
                print('iteration %d: loss %.4f, accuracy %.3f' % (
                    iteration, running / args.eval_every, correct / len(val_set)))
                with open('log.csv', 'a', newline='') as f:
                    csv.writer(f).writerow([iteration, '%.5f' % (running / args.eval_every), correct])
                running = 0.0
            if iteration >= args.max_iter:
                break
        epoch += 1
    torch.save(model.module.state_dict(), 'model.pth')


if __name__ == '__main__':
    main()
