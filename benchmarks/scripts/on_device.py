"""Some steps of training on a GPU (or the CPU), as `benchmarks/gpu.py` starts it; prints what came out as JSON.

One script for all ways to train, so that nothing else differs between them: `runtime` (ranks by `dp2ddp_runtime`), `hand`
(DistributedDataParallel, as tutorials have it), `oracle` (one process that emulates `nn.DataParallel` with N replicas),
`plain` (one process, no wrap).
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path[1:1] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "runtime")]


class Many(nn.Module):
    """362 small tensors."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64)) for _ in range(120))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for block in self.blocks:
            x = x + F.relu(block(x))
        return self.head(x)


def transformer():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 256, 10))


def convolutions():
    layers = nn.Conv2d(3, 16, 7, 4, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 64, 3, 4, 1), nn.BatchNorm2d(64)
    return nn.Sequential(*layers, nn.ReLU(), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet(name):
    import torchvision

    return getattr(torchvision.models, name)(num_classes=10)


CASES = {
    "many": (Many, (64,)),
    "convolutions": (convolutions, (3, 64, 64)),
    "transformer": (transformer, (64, 256)),
    "resnet18": (lambda: resnet("resnet18"), (3, 224, 224)),
    "resnet50": (lambda: resnet("resnet50"), (3, 224, 224)),
}


def wrapped(wrap, net, ranks):
    """The model, and which rows of a batch this process passes to it."""
    if wrap == "runtime":
        import dp2ddp_runtime as ddp

        return ddp.wrap_model(net), slice(None)
    if wrap == "oracle":
        from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

        return EmulatedDataParallel(net, n=ranks), slice(None)
    if wrap == "hand":
        rank = int(os.environ["RANK"])
        return nn.parallel.DistributedDataParallel(net), slice(rank, None, ranks)
    return net, slice(None)


def place(wrap, ranks):
    """This process's device, whether it prints, and by what it talks to the others."""
    has_gpu = torch.cuda.is_available()
    if wrap == "runtime":
        import dp2ddp_runtime as ddp
        from dp2ddp_runtime.ranks import group

        ddp.setup()
        return ddp.device(), ddp.is_main(), group.backends() if ddp.world_size() > 1 else ""
    if wrap != "hand":
        return torch.device("cuda" if has_gpu else "cpu"), True, ""
    import torch.distributed as dist

    count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local % count) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if has_gpu and ranks <= count else "gloo"
    dist.init_process_group(backend)
    return device, dist.get_rank() == 0, backend


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wrap", choices=["runtime", "hand", "oracle", "plain"])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--amp", choices=["none", "float16", "bfloat16"], default="none")
    args = parser.parse_args()

    device, prints, backend = place(args.wrap, args.ranks)
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    make, shape = CASES[args.case]
    net, rows = wrapped(args.wrap, make().to(device), args.ranks)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    dtype = getattr(torch, args.amp, torch.float16)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "float16" and device.type == "cuda")
    data = torch.Generator().manual_seed(1)
    losses, seconds = [], []
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, *shape, generator=data)
        y = torch.randint(10, (args.batch_size,), generator=data)
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        x, y = x[rows].to(device), y[rows].to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype, enabled=args.amp != "none"):
            loss = F.cross_entropy(net(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    if prints:
        found = {
            "losses": losses,
            "norms": [value.double().norm().item() for value in net.state_dict().values() if value.is_floating_point()],
            "scale": scaler.get_scale(),
            "ms": statistics.median(seconds[len(seconds) // 3 :]) * 1e3,
            "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else None,
            "backend": backend,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
