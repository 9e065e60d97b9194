"""An original moved to Accelerate, the batch split over the ranks (`split_batches`)."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

import parts


def main():
    args = parts.arguments()
    Net, Data, Batch, _ = parts.case(args.case)

    config = DataLoaderConfiguration(split_batches=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=config)
    torch.manual_seed(0)
    data = Data(args.samples)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)

    for epoch in range(args.epochs):
        total_loss = 0.0
        correct = total = 0
        for x, y in loader:
            batch = Batch(x, y)
            optimizer.zero_grad()
            out = net(batch.x)
            loss = batch.loss(out)
            accelerator.backward(loss)
            optimizer.step()
            total_loss += loss.item()
            right, count = batch.score(out)
            correct += right
            total += count
        totals = torch.tensor([total_loss / accelerator.num_processes, correct, total], device=accelerator.device)
        totals = accelerator.reduce(totals)
        accelerator.print(f"epoch {epoch}: loss {totals[0] / len(loader):.4f}, accuracy {totals[1] / totals[2]:.4f}")


if __name__ == "__main__":
    main()
