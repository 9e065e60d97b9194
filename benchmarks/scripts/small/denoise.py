"""A denoising autoencoder in two wrapped halves, an optimizer each; the noise comes with the samples, without workers."""
import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, count, sigma):
        steps = torch.linspace(0, 1, 20)
        self.clean = torch.stack([torch.sin(6 * steps * (1 + i % 5)) for i in range(count)])
        self.sigma = sigma

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        clean = self.clean[i]
        return clean + self.sigma * torch.randn(20), clean


def train_epoch(encoder, decoder, optimizers, loader, device):
    encoder.train()
    decoder.train()
    total = 0.0
    for noisy, clean in loader:
        noisy, clean = noisy.to(device), clean.to(device)
        for optimizer in optimizers:
            optimizer.zero_grad()
        code = encoder(noisy)
        loss = nn.functional.mse_loss(decoder(code), clean) + 1e-3 * code.abs().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        total += loss.item() * len(noisy)
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--batch-size', type=int, default=16)
    parser.add_argument('--sigma', type=float, default=0.3)
    parser.add_argument('--seed', type=int, default=17)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    loader = DataLoader(Noisy(44, args.sigma), batch_size=args.batch_size, shuffle=True)
    encoder = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 6))
    decoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 20))
    encoder = nn.DataParallel(encoder.to(device))
    decoder = nn.DataParallel(decoder.to(device))
    optimizers = [optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
                  optim.Adam(decoder.parameters(), lr=0.01)]
    schedulers = [optim.lr_scheduler.StepLR(optimizers[0], 1, gamma=0.5)]
    for epoch in range(args.epochs):
        loss = train_epoch(encoder, decoder, optimizers, loader, device)
        for scheduler in schedulers:
            scheduler.step()
        print(f'epoch {epoch}: loss {loss:.5f}, lr {schedulers[0].get_last_lr()[0]:.4f}')
    torch.save([encoder.module.state_dict(), decoder.module.state_dict()], 'autoencoder.pt')


if __name__ == '__main__':
    main()
