"""An original moved to Lightning Fabric, the batch size divided by the ranks."""

import logging
import os

import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader

import parts

logging.getLogger("lightning_fabric").setLevel(logging.WARNING)


def main():
    args = parts.arguments()
    Net, Data, Batch, _ = parts.case(args.case)

    fabric = Fabric(accelerator="auto", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    data = Data(args.samples)
    batch_size = args.batch_size // fabric.world_size
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=args.workers)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    net, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(loader)

    for epoch in range(args.epochs):
        total_loss = 0.0
        correct = total = 0
        for x, y in loader:
            batch = Batch(x, y)
            optimizer.zero_grad()
            out = net(batch.x)
            loss = batch.loss(out)
            fabric.backward(loss)
            optimizer.step()
            total_loss += loss.item()
            right, count = batch.score(out)
            correct += right
            total += count
        totals = torch.tensor([total_loss / fabric.world_size, correct, total], device=fabric.device)
        totals = fabric.all_reduce(totals, reduce_op="sum")
        fabric.print(f"epoch {epoch}: loss {totals[0] / len(loader):.4f}, accuracy {totals[1] / totals[2]:.4f}")


if __name__ == "__main__":
    main()
