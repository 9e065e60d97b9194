"""Tags sentences of different lengths: an embedding, a GRU, padding, groups of parameters, clipping. No workers."""
import argparse

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD = 0


class Sentences(Dataset):
    def __init__(self, count):
        chance = torch.Generator().manual_seed(count)
        lengths = torch.randint(3, 8, (count,), generator=chance).tolist()
        self.words = [torch.randint(1, 30, (length,), generator=chance) for length in lengths]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return self.words[i], 1 + self.words[i] % 3


def collate(samples):
    words, tags = zip(*samples)
    return (pad_sequence(words, batch_first=True, padding_value=PAD),
            pad_sequence(tags, batch_first=True, padding_value=PAD))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12, padding_idx=PAD)
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(16, 4)

    def forward(self, words):
        self.gru.flatten_parameters()
        hidden, _ = self.gru(self.embedding(words))
        return self.out(self.drop(hidden))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--batch_size', type=int, default=10)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--clip', type=float, default=0.25)
    parser.add_argument('--seed', type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_data = DataLoader(Sentences(40), args.batch_size, shuffle=True, collate_fn=collate)
    test_data = DataLoader(Sentences(12), args.batch_size, collate_fn=collate)
    model = nn.DataParallel(Tagger()).cuda()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam([
        {'params': model.module.embedding.parameters(), 'lr': args.lr * 2},
        {'params': list(model.module.gru.parameters()) + list(model.module.out.parameters())},
    ], lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)

    for epoch in range(args.epochs):
        model.train()
        total, words_seen = 0.0, 0
        for words, tags in train_data:
            words, tags = words.cuda(), tags.cuda()
            optimizer.zero_grad()
            scores = model(words)
            loss = criterion(scores.view(-1, 4), tags.view(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            count = (tags != PAD).sum().item()
            total += loss.item() * count
            words_seen += count
        scheduler.step()
        print('| epoch {:3d} | loss {:.4f} | words {} | lr {:.5f}'.format(
            epoch, total / words_seen, words_seen, scheduler.get_last_lr()[1]))
        with open('losses.txt', 'a') as f:
            f.write('%d %.5f\n' % (epoch, total / words_seen))

    model.eval()
    right = seen = 0
    with torch.no_grad():
        for words, tags in test_data:
            words, tags = words.cuda(), tags.cuda()
            real = tags != PAD
            right += ((model(words).argmax(-1) == tags) & real).sum().item()
            seen += real.sum().item()
    print('accuracy {:.4f} of {} words'.format(right / seen, seen))
    torch.save(model, 'tagger.pt')


if __name__ == '__main__':
    main()
