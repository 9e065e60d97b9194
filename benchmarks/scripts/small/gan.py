"""Two models against each other, with two optimizers. The images are flipped by torch where they are loaded: no workers."""
import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument('--n_epochs', type=int, default=2)
parser.add_argument('--batch_size', type=int, default=12)
parser.add_argument('--lr', type=float, default=0.002)
parser.add_argument('--b1', type=float, default=0.5)
parser.add_argument('--latent_dim', type=int, default=8)
parser.add_argument('--n_cpu', type=int, default=0)
parser.add_argument('--seed', type=int, default=4)
opt = parser.parse_args()
torch.manual_seed(opt.seed)


class Blobs(Dataset):
    def __init__(self, count=36):
        chance = torch.Generator().manual_seed(1)
        self.images = torch.tanh(torch.randn(count, 1, 8, 8, generator=chance) + torch.linspace(-1, 1, 8))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        return image.flip(-1) if torch.rand(()) < 0.5 else image


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(opt.latent_dim, 64)
        self.conv = nn.Sequential(nn.BatchNorm2d(4), nn.Upsample(scale_factor=2), nn.Conv2d(4, 8, 3, padding=1),
                                  nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 3, padding=1), nn.Tanh())

    def forward(self, z):
        return self.conv(self.l1(z).view(-1, 4, 4, 4))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.2), nn.BatchNorm2d(8),
                                   nn.Conv2d(8, 8, 3, 2, 1), nn.LeakyReLU(0.2))
        self.adv = nn.Linear(32, 1)

    def forward(self, img):
        return self.adv(self.model(img).flatten(1))


dataloader = DataLoader(Blobs(), batch_size=opt.batch_size, shuffle=True, num_workers=opt.n_cpu)
generator = nn.DataParallel(Generator().cuda())
discriminator = nn.DataParallel(Discriminator().cuda())
adversarial_loss = nn.BCEWithLogitsLoss()
optimizer_G = optim.Adam(generator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))
optimizer_D = optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))
fixed = torch.randn(6, opt.latent_dim).cuda()

for epoch in range(opt.n_epochs):
    for i, imgs in enumerate(dataloader):
        imgs = imgs.cuda()
        valid = torch.ones(imgs.size(0), 1).cuda()
        fake = torch.zeros(imgs.size(0), 1).cuda()

        # -----  Generator  -----
        optimizer_G.zero_grad()
        z = torch.randn(imgs.size(0), opt.latent_dim).cuda()
        gen_imgs = generator(z)
        g_loss = adversarial_loss(discriminator(gen_imgs), valid)
        g_loss.backward()
        optimizer_G.step()

        # -----  Discriminator  -----
        optimizer_D.zero_grad()
        real_loss = adversarial_loss(discriminator(imgs), valid)
        fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()
        print('[Epoch %d/%d] [Batch %d/%d] [D loss: %.4f] [G loss: %.4f]' % (
            epoch, opt.n_epochs, i, len(dataloader), d_loss.item(), g_loss.item()))

    generator.eval()
    with torch.no_grad():
        samples = generator(fixed)
    generator.train()
    print('samples: mean %.4f, spread %.4f' % (samples.mean().item(), samples.std().item()))
    torch.save(generator.state_dict(), 'generator_%d.pth' % epoch)
    torch.save(discriminator.state_dict(), 'discriminator_%d.pth' % epoch)
