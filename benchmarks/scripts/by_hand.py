"""An original moved to DistributedDataParallel by hand, as tutorials do, the batch size divided by the ranks."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import parts


def main():
    args = parts.arguments()
    Net, Data, Batch, collate = parts.case(args.case)

    ranks, devices = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % devices) if devices else torch.device("cpu")
    if devices:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if ranks <= devices else "gloo")
    torch.manual_seed(0)
    data = Data(args.samples)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(
        data, batch_size=args.batch_size // ranks, sampler=sampler, num_workers=args.workers, collate_fn=collate
    )
    net = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total_loss = 0.0
        correct = total = 0
        for x, y in loader:
            batch = Batch(x.to(device), parts.moved(y, device))
            optimizer.zero_grad()
            out = net(batch.x)
            loss = batch.loss(out)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            right, count = batch.score(out)
            correct += right
            total += count
        totals = torch.tensor([total_loss / ranks, correct, total], dtype=torch.float32, device=device)
        dist.all_reduce(totals)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {totals[0] / len(loader):.4f}, accuracy {totals[1] / totals[2]:.4f}")


if __name__ == "__main__":
    main()
