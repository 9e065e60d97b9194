"""Classifies small colour images; flips and shifts them with torch in worker processes. Steps, BatchNorm, checkpoints."""
import argparse
import os

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=3)
parser.add_argument('--batch-size', type=int, default=16)
parser.add_argument('--lr', type=float, default=0.05)
parser.add_argument('--workers', type=int, default=2)
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--out', default='out')
args = parser.parse_args()

torch.manual_seed(args.seed)
os.makedirs(args.out, exist_ok=True)


class Images(Dataset):
    def __init__(self, count, train):
        generator = torch.Generator().manual_seed(10 + train)
        self.labels = torch.arange(count) % 4
        patterns = torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(5))
        self.images = patterns[self.labels] + 0.6 * torch.randn(count, 3, 10, 10, generator=generator)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image, label = self.images[index], self.labels[index]
        if self.train:
            if torch.rand(1).item() < 0.5:
                image = image.flip(-1)
            dy, dx = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, (dy, dx), (1, 2))
        return image, label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.fc = nn.Linear(48, 4)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


train_loader = DataLoader(Images(60, True), batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
test_loader = DataLoader(Images(32, False), batch_size=32, shuffle=False)

net = Net().cuda()
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), 'GPUs!')
    net = nn.DataParallel(net)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
best = 0.0

for epoch in range(args.epochs):
    net.train()
    running, correct, total = 0.0, 0, 0
    for inputs, targets in train_loader:
        inputs, targets = inputs.cuda(), targets.cuda()
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        running += loss.item() * targets.size(0)
        correct += outputs.argmax(1).eq(targets).sum().item()
        total += targets.size(0)
    scheduler.step()
    print('epoch %d: loss %.4f, accuracy %.2f%%' % (epoch, running / total, 100. * correct / total))

    net.eval()
    correct = 0
    with torch.no_grad():
        for inputs, targets in test_loader:
            inputs, targets = inputs.cuda(), targets.cuda()
            correct += net(inputs).argmax(1).eq(targets).sum().item()
    accuracy = 100. * correct / len(test_loader.dataset)
    print('test accuracy %.2f%%' % accuracy)
    if accuracy > best:
        best = accuracy
    torch.save({'net': net.state_dict(), 'epoch': epoch, 'accuracy': accuracy}, os.path.join(args.out, 'ckpt.pth'))

print('best %.2f%%' % best)
