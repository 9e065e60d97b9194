"""Metric learning: NumPy picks positives and negatives where samples are loaded, in workers. Adagrad, a margin, recall."""
import argparse
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.of_class = {label: np.flatnonzero(y == label) for label in np.unique(y)}

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        label = self.y[i]
        positive = np.random.choice(self.of_class[label])
        other = np.random.choice([each for each in self.of_class if each != label])
        negative = np.random.choice(self.of_class[other])
        return self.x[i], self.x[positive], self.x[negative]


class Embedder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def recall_at_1(model, x, y):
    model.eval()
    with torch.no_grad():
        e = model(x.cuda()).cpu()
    near = (e @ e.t() - 2 * torch.eye(len(e))).argmax(1)
    return (y[near] == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--batch-size', type=int, default=14)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--margin', type=float, default=0.3)
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--seed', type=int, default=13)
    parser.add_argument('--save', default='save')
    args = parser.parse_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if not os.path.isdir(args.save):
        os.makedirs(args.save)

    chance = np.random.RandomState(3)
    y = np.arange(60) % 5
    x = (chance.randn(5, 16)[y] + 0.8 * chance.randn(60, 16)).astype(np.float32)
    loader = DataLoader(Triplets(x, y), args.batch_size, shuffle=True, num_workers=args.workers)
    test_x, test_y = torch.from_numpy(x[::2]), torch.from_numpy(y[::2])

    model = Embedder().cuda()
    model = nn.DataParallel(model, device_ids=[0, 1])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr, weight_decay=1e-3)
    for epoch in range(args.epochs):
        model.train()
        losses = []
        for anchor, positive, negative in loader:
            a, p, n = model(anchor.cuda()), model(positive.cuda()), model(negative.cuda())
            loss = F.triplet_margin_loss(a, p, n, margin=args.margin)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        recall = recall_at_1(model, test_x, test_y)
        print('epoch {}: loss {:.4f}, recall@1 {:.4f}'.format(epoch, np.mean(losses), recall))
        torch.save({'epoch': epoch, 'weights': model.state_dict(), 'optim': optimizer.state_dict(), 'recall': recall},
                   os.path.join(args.save, 'epoch_{}.pt'.format(epoch)))
    np.save(os.path.join(args.save, 'losses.npy'), np.array(losses))


if __name__ == '__main__':
    main()
