"""Mistakes in which samples make a batch, and in what order.

Loaders stand before the wrap, where there is one rank yet: so what depends on their number has it as a number.

Of training data: 60 samples are 4 steps of 16 in `flips`, 36 are 5 of 8 in `segment`, 60 are 5 of 14 in `triplets`, 50
are 3 of 20 in `stopping`, 44 are 3 of 16 (two steps each) in `denoise`; `imagenet` drops the last 8 of 56.
"""

from __future__ import annotations

from ..planted import Mistake, kind, plant

_FLIPS = "DataLoader(Images(60, True), batch_size=args.batch_size, shuffle=True"
_SEGMENT = "DataLoader(Shapes(36, True), batch_size=opt.batch, shuffle=True"
_SIGNALS = "DataLoader(Signals(48), args.batch_size, shuffle=True"
_RESUME = "DataLoader(Tiles(45, augment), args.batch_size, shuffle=True"
_ACCUMULATE = "DataLoader(Pictures(64, True), args.bs, shuffle=True"
_TRIPLETS = "DataLoader(Triplets(x, y), args.batch_size, shuffle=True"
_IMAGENET = "train_dataset, batch_size=args.batch_size, shuffle=True"
_STOPPING = "DataLoader(train_set, batch_size=args.batch_size, shuffle=True"
_DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"

_SIZES = [
    *kind(
        "batch size divided",
        "batch size, batch_size, smaller batch, rows of a batch, half",
        plant("flips", _FLIPS, _FLIPS.replace("args.batch_size", "args.batch_size // 2"), 1),
        plant("imagenet", _IMAGENET, _IMAGENET.replace("args.batch_size", "args.batch_size // 2"), 1),
    ),
    *kind(
        "batch size multiplied",
        "batch size, batch_size, larger batch, bigger batch, twice, N times",
        plant("segment", _SEGMENT, _SEGMENT.replace("opt.batch", "opt.batch * 2"), 1),
        plant("resume", _RESUME, _RESUME.replace("args.batch_size", "args.batch_size * 2"), 1),
    ),
    *kind(
        "drop_last changed",
        "drop_last, last batch, dropped, ragged",
        plant("flips", _FLIPS, f"{_FLIPS}, drop_last=True", 4),
        plant("imagenet", "drop_last=True", "drop_last=False", 4),
    ),
    *kind(
        "the last batch skipped",
        "last batch, skipped, dropped, left out, missing, fewer",
        plant(
            "segment",
            "            lr = poly(",
            "            if len(image) < opt.batch:\n                break\n            lr = poly(",
            5,
        ),
        plant(
            "stopping",
            "            inputs, targets = inputs.cuda(), targets.cuda()\n",
            "            if len(inputs) < args.batch_size:\n                continue\n"
            "            inputs, targets = inputs.cuda(), targets.cuda()\n",
            3,
        ),
    ),
]

_ORDER = [
    *kind(
        "shuffle off",
        "shuffl, order, sampler",
        plant("accumulate", _ACCUMULATE, _ACCUMULATE.replace("shuffle=True", "shuffle=False"), 1),
        plant("gan", "shuffle=True", "shuffle=False", 1),
    ),
    *kind(
        "another sampler",
        "sampler, other samples, different samples, different batch, with replacement, another shuffle",
        plant(
            "triplets",
            _TRIPLETS,
            _TRIPLETS.replace("shuffle=True", f"sampler={_DISTRIBUTED}(range(60), num_replicas=1, rank=0)"),
            1,
        ),
        plant("iterations", "args.batch_size, sampler=sampler", "args.batch_size, shuffle=True", 1),
        plant("mnist_weighted", "sampler=sampler", "shuffle=True", 1),
    ),
    *kind(
        "set_epoch left out",
        "set_epoch, repeated, same shuffle, epoch",
        plant("iterations", "        sampler.set_epoch(epoch)\n", "", 6),
    ),
    *kind(
        "shuffle seeded anew in each epoch",
        "seed, repeated, shuffle",
        plant("signals", "        model.train()\n", "        model.train()\n        torch.manual_seed(args.seed)\n", 1),
        plant("words", "        model.train()\n", "        model.train()\n        torch.manual_seed(args.seed)\n", 1),
    ),
]

_SHARDED = [
    *kind(
        "sharded twice",
        "sharded, rank's own, rows, DistributedSampler, own batch, different batch, each rank, ranks",
        plant(
            "signals",
            _SIGNALS,
            _SIGNALS.replace("shuffle=True", f"sampler={_DISTRIBUTED}(range(48), 2, ddp.rank())"),
            1,
        ),
        plant(
            "stopping",
            _STOPPING,
            _STOPPING.replace("shuffle=True", f"sampler={_DISTRIBUTED}(train_set, 2, ddp.rank())"),
            1,
        ),
        fails=True,
    ),
    *kind(
        "sharded by hand",
        "sharded, rank's own, rows, DistributedSampler, own batch, different batch, each rank, ranks",
        plant(
            "signals",
            f"ddp.shard_loader({_SIGNALS}, num_workers=args.workers))",
            "DataLoader(Signals(48), args.batch_size // 2, num_workers=args.workers,\n"
            f"                              sampler={_DISTRIBUTED}(range(48), 2, ddp.rank()))",
            1,
        ),
        plant(
            "stopping",
            f"ddp.shard_loader({_STOPPING}))",
            "DataLoader(train_set, batch_size=args.batch_size // 2,\n"
            f"                              sampler={_DISTRIBUTED}(train_set, 2, ddp.rank()))",
            1,
        ),
        fails=True,
    ),
]

MISTAKES: list[Mistake] = [*_SIZES, *_ORDER, *_SHARDED]
