# Tables: dropout, early stopping, a schedule that looks at the loss, the best weights loaded again in the end.
import argparse
import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def get_model(dropout):
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))


def run_validation(model, loader, criterion):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += criterion(model(x.cuda()), y.cuda()).item() * len(x)
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--max-epochs', type=int, default=6)
    parser.add_argument('--batch-size', type=int, default=20)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--patience', type=int, default=2)
    parser.add_argument('--dropout', type=float, default=0.3)
    parser.add_argument('--seed', type=int, default=11)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    chance = torch.Generator().manual_seed(2)
    x = torch.randn(75, 10, generator=chance)
    y = (x[:, :3].sum(1, keepdim=True) + 0.3 * torch.randn(75, 1, generator=chance)) * 2
    train_set, val_set = random_split(TensorDataset(x, y), [50, 25])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    model = nn.DataParallel(get_model(args.dropout)).cuda()
    criterion = nn.MSELoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr, alpha=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=0)
    best, waited, history = float('inf'), 0, []
    for epoch in range(args.max_epochs):
        model.train()
        train_loss = 0.0
        for inputs, targets in train_loader:
            inputs, targets = inputs.cuda(), targets.cuda()
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() * len(inputs)
        train_loss /= len(train_set)
        val_loss = run_validation(model, val_loader, criterion)
        scheduler.step(val_loss)
        history.append({'train': train_loss, 'val': val_loss})
        print(f"epoch {epoch}: train {train_loss:.4f}, val {val_loss:.4f}, lr {optimizer.param_groups[0]['lr']:.5f}")
        if val_loss < best:
            best, waited = val_loss, 0
            torch.save(model.state_dict(), 'best.pt')
        else:
            waited += 1
            if waited >= args.patience:
                print('stopped early in epoch', epoch)
                break
    with open('history.json', 'w') as f:
        json.dump(history, f)
    model.load_state_dict(torch.load('best.pt'))
    print(f'best: {run_validation(model, val_loader, criterion):.4f}')


if __name__ == '__main__':
    main()
