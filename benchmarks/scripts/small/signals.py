"""Signals with NumPy's noise and shifts, made in worker processes. AdamW, one cycle, clipping, a log file."""
import argparse
import logging

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

logger = logging.getLogger('signals')


class Signals(Dataset):
    def __init__(self, count, train=True):
        chance = np.random.RandomState(count)
        self.labels = np.arange(count) % 3
        time = np.linspace(0, 6.28, 32)
        self.waves = np.stack([np.sin((label + 1) * time + chance.rand()) for label in self.labels]).astype(np.float32)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        wave = self.waves[i]
        if self.train:
            wave = np.roll(wave, np.random.randint(-4, 5))
            wave = wave + 0.1 * np.random.randn(32).astype(np.float32)
        return torch.from_numpy(wave).unsqueeze(0), int(self.labels[i])


def make_model():
    return nn.Sequential(
        nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(8, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 3))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--batch-size', type=int, default=12)
    parser.add_argument('--max-lr', type=float, default=0.02)
    parser.add_argument('--clip', type=float, default=0.5)
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(filename='train.log', level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_loader = DataLoader(Signals(48), args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(Signals(21, train=False), args.batch_size)
    model = nn.DataParallel(make_model()).cuda()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.max_lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.max_lr, epochs=args.epochs, steps_per_epoch=len(train_loader))

    for epoch in range(args.epochs):
        model.train()
        for step, (x, y) in enumerate(train_loader):
            x, y = x.cuda(), y.cuda()
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            logger.info('epoch %d step %d loss %.5f norm %.4f', epoch, step, loss.item(), norm.item())
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in test_loader:
                right += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
        logger.info('epoch %d accuracy %.4f', epoch, right / len(test_loader.dataset))
        print(f'epoch {epoch}: accuracy {right / len(test_loader.dataset):.4f}, lr {scheduler.get_last_lr()[0]:.2e}')
    torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'args': vars(args)}, 'last.pt')


if __name__ == '__main__':
    main()
