"""Segmentation: image and mask are flipped together by `random` in worker processes. Adam, dropout, a schedule by hand."""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, count, augment):
        self.images, self.masks = [], []
        chance = torch.Generator().manual_seed(count)
        for _ in range(count):
            top, left = torch.randint(0, 6, (2,), generator=chance).tolist()
            mask = torch.zeros(12, 12, dtype=torch.long)
            mask[top:top + 5, left:left + 4] = 1
            self.masks.append(mask)
            self.images.append((mask + 0.5 * torch.randn(12, 12, generator=chance)).unsqueeze(0))
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, mask = self.images[i], self.masks[i]
        if self.augment:
            if random.random() > 0.5:
                image, mask = image.flip(-1), mask.flip(-1)
            if random.random() > 0.5:
                image, mask = image.flip(-2), mask.flip(-2)
            image = image * random.uniform(0.8, 1.2)
        return image, mask


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.2))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        d = self.down(x)
        u = self.up(self.deep(F.max_pool2d(d, 2)))
        return self.head(torch.cat([d, u], dim=1))


def poly(optimizer, base, step, steps):
    lr = base * (1 - step / steps) ** 0.9
    for group in optimizer.param_groups:
        group['lr'] = lr
    return lr


def evaluate(model, loader):
    model.eval()
    hit = union = 0
    with torch.no_grad():
        for image, mask in loader:
            found = model(image.cuda()).argmax(1).cpu()
            hit += ((found == 1) & (mask == 1)).sum().item()
            union += ((found == 1) | (mask == 1)).sum().item()
    return hit / max(union, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--seed', type=int, default=7)
    opt = parser.parse_args()
    random.seed(opt.seed)
    torch.manual_seed(opt.seed)

    train_loader = DataLoader(Shapes(36, True), batch_size=opt.batch, shuffle=True, num_workers=opt.workers)
    val_loader = DataLoader(Shapes(10, False), batch_size=4)
    model = nn.DataParallel(UNet().cuda())
    weight = torch.tensor([1.0, 2.0]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr, betas=(0.9, 0.99), weight_decay=1e-4)
    steps, step = opt.epochs * len(train_loader), 0
    best = 0.0
    for epoch in range(1, opt.epochs + 1):
        model.train()
        total = 0.0
        for image, mask in train_loader:
            lr = poly(optimizer, opt.lr, step, steps)
            image, mask = image.cuda(), mask.cuda()
            loss = F.cross_entropy(model(image), mask, weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
        iou = evaluate(model, val_loader)
        print('epoch %d  lr %.6f  loss %.4f  IoU %.4f' % (epoch, lr, total / len(train_loader), iou))
        if iou >= best:
            best = iou
            torch.save(model.module.state_dict(), 'unet_best.pth')
    print('best IoU %.4f' % best)


if __name__ == '__main__':
    main()
