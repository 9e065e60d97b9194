"""The original moved to DistributedDataParallel by hand, as tutorials do, the batch size divided by the ranks."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train import CASES, Data, arguments, fit, report


def main():
    args = arguments()
    ranks, devices = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % devices) if devices else torch.device("cpu")
    if devices:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if ranks <= devices else "gloo")
    torch.manual_seed(0)
    make, shape, classes, labels, rows = CASES[args.case]
    data = Data((args.steps + 16) * rows, shape, classes, labels)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=rows // ranks, sampler=sampler, num_workers=args.workers)
    net = DistributedDataParallel(make().to(device))
    ends = fit(net, loader, device, args)
    if dist.get_rank() == 0:
        report(ends)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
