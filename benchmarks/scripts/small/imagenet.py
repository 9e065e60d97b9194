"""In the manner of the ImageNet example: torchvision's transforms in worker processes, meters, resuming, the best model."""
import argparse
import os
import shutil

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

best_acc1 = 0


class Folder(Dataset):
    """Images as a folder of files would give them."""

    def __init__(self, count, seed, transform):
        chance = np.random.RandomState(seed)
        self.targets = [index % 5 for index in range(count)]
        self.pixels = [np.uint8(chance.randint(0, 120, (14, 14, 3)) + 25 * target) for target in self.targets]
        self.transform = transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.pixels[index])), self.targets[index]


class AlexNet(nn.Module):
    def __init__(self, num_classes=5):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(nn.Linear(144, 24), nn.ReLU(inplace=True), nn.Linear(24, num_classes))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def main():
    global best_acc1
    parser = argparse.ArgumentParser()
    parser.add_argument('-j', '--workers', default=2, type=int)
    parser.add_argument('--epochs', default=3, type=int)
    parser.add_argument('-b', '--batch-size', default=16, type=int)
    parser.add_argument('--lr', default=0.05, type=float)
    parser.add_argument('--momentum', default=0.9, type=float)
    parser.add_argument('--wd', default=1e-3, type=float, dest='weight_decay')
    parser.add_argument('--resume', default='', type=str)
    parser.add_argument('--seed', default=3, type=int)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    model = torch.nn.DataParallel(AlexNet()).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)

    start_epoch = 0
    if args.resume:
        if os.path.isfile(args.resume):
            checkpoint = torch.load(args.resume)
            start_epoch = checkpoint['epoch']
            best_acc1 = checkpoint['best_acc1']
            model.load_state_dict(checkpoint['state_dict'])
            optimizer.load_state_dict(checkpoint['optimizer'])
            print("=> loaded checkpoint '{}' (epoch {})".format(args.resume, checkpoint['epoch']))

    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = Folder(56, 0, transforms.Compose([
        transforms.RandomCrop(12), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]))
    val_dataset = Folder(20, 1, transforms.Compose([transforms.CenterCrop(12), transforms.ToTensor(), normalize]))
    train_loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers,
                              pin_memory=True, drop_last=True)
    val_loader = DataLoader(val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers)

    for epoch in range(start_epoch, args.epochs):
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch)
        acc1 = validate(val_loader, model, criterion)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint({
            'epoch': epoch + 1,
            'state_dict': model.state_dict(),
            'best_acc1': best_acc1,
            'optimizer': optimizer.state_dict(),
        }, is_best)


def train(train_loader, model, criterion, optimizer, epoch):
    losses, top1 = AverageMeter(), AverageMeter()
    model.train()
    for i, (images, target) in enumerate(train_loader):
        images = images.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print('Epoch: [{}][{}/{}]\tLoss {:.4f} ({:.4f})\tAcc@1 {:.2f} ({:.2f})'.format(
            epoch, i, len(train_loader), losses.val, losses.avg, top1.val, top1.avg))


def validate(val_loader, model, criterion):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            images, target = images.cuda(), target.cuda()
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update(accuracy(output, target), images.size(0))
    print(' * Acc@1 {:.3f} Loss {:.4f}'.format(top1.avg, losses.avg))
    return top1.avg


def save_checkpoint(state, is_best, filename='checkpoint.pth.tar'):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, 'model_best.pth.tar')


class AverageMeter(object):
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def adjust_learning_rate(optimizer, epoch, args):
    lr = args.lr * (0.1 ** (epoch // 2))
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr


def accuracy(output, target):
    with torch.no_grad():
        return output.argmax(1).eq(target).float().mean().item() * 100


if __name__ == '__main__':
    main()
