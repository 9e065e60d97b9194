"""Some steps of training on a GPU (or the CPU), as `benchmarks/gpu.py` starts it; prints what came out as JSON.

One script for all ways to train, so that nothing else differs between them: `runtime` (ranks by `dp2ddp_runtime`), `one`
(a single rank that goes through all of it, over NCCL), `oracle` (one process that emulates `nn.DataParallel` with N
replicas).
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from train import many

sys.path[1:1] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "runtime")]


def transformer():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 256, 10))


def convolutions():
    layers = nn.Conv2d(3, 16, 7, 4, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 64, 3, 4, 1), nn.BatchNorm2d(64)
    return nn.Sequential(*layers, nn.ReLU(), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def segmentation():
    layers = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 21, 3, padding=1)
    return nn.Sequential(*layers)


CASES = {
    "many": (many, (64,)),
    "convolutions": (convolutions, (3, 64, 64)),
    "transformer": (transformer, (64, 256)),
    "segmentation": (segmentation, (3, 64, 64)),
}


def wrapper(wrap, ranks):
    """How a model is wrapped."""
    if wrap == "oracle":
        from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

        return lambda net: EmulatedDataParallel(net, n=ranks)
    import dp2ddp_runtime as ddp

    ddp.setup()
    if wrap == "one":
        be_one()
    return ddp.wrap_model


def be_one():
    """Let this process be all ranks, and meet itself over NCCL (over gloo on the CPU)."""
    import torch.distributed as dist
    from dp2ddp_runtime.world import NEVER, world

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), 0, 1, NEVER)
    groups = dict.fromkeys(("cpu", "cuda", "sums"), gloo)
    world.store = store
    if torch.cuda.is_available():
        world.device = torch.device("cuda", 0)
        for name in ("cuda", "sums"):
            options = dist.ProcessGroupNCCL.Options()
            groups[name] = dist.ProcessGroupNCCL(dist.PrefixStore(name, store), 0, 1, options)
    world.groups = groups


def drawn(rows, shape, dense, generator):
    """A batch: inputs and classes."""
    x = torch.randn(rows, *shape, generator=generator)
    return x, torch.randint(10, (rows, *(shape[1:] if dense else ())), generator=generator)


def train(case, amp, steps, batch_size, wrap):
    """What a case comes to."""
    torch.manual_seed(0)
    make, shape = CASES[case]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = wrap(make().to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    dtype = getattr(torch, amp, torch.float16)
    scaler = torch.amp.GradScaler(device.type, enabled=amp == "float16" and device.type == "cuda")
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x, y = (each.to(device) for each in drawn(batch_size, shape, case == "segmentation", data))
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype, enabled=amp != "none"):
            loss = F.cross_entropy(net(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {
        "losses": losses,
        "norms": [value.double().norm().item() for value in net.state_dict().values() if value.is_floating_point()],
        "scale": scaler.get_scale(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wrap", choices=["runtime", "one", "oracle"])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("runs", nargs="+", help="case:autocast:steps:rows of a batch")
    args = parser.parse_args()
    wrap = wrapper(args.wrap, args.ranks)
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for run in args.runs:
        case, amp, steps, batch_size = run.split(":")
        print(json.dumps(train(case, amp, int(steps), int(batch_size), wrap)), flush=True)


if __name__ == "__main__":
    main()
