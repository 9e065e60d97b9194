"""Mistakes in seeds and draws."""

from __future__ import annotations

from ..planted import Mistake, kind, plant

_DRAW = "seed, draw, drawn, random, generator"

MISTAKES: list[Mistake] = [
    # Ahead of an epoch the ranks take over rank 0's state, which mends much of it: so these seed in the midst of one.
    *kind(
        "seed plus rank",
        f"{_DRAW}, dropout",
        plant(
            "segment",
            "            image, mask = image.cuda(), mask.cuda()\n",
            "            torch.manual_seed(opt.seed + ddp.rank())\n"
            "            image, mask = image.cuda(), mask.cuda()\n",
            1,
        ),
        plant(
            "accumulate",
            "            x, y = x.cuda(), y.cuda()\n",
            "            torch.manual_seed(args.seed + ddp.rank())\n            x, y = x.cuda(), y.cuda()\n",
            1,
        ),
    ),
    *kind(
        "a split with each rank's seed",
        f"{_DRAW}, ranks",
        plant("stopping", "torch.manual_seed(args.seed)", "ddp.seed_everything(args.seed + ddp.rank())", 1),
        fails=True,
    ),
    *kind(
        "another seed",
        f"{_DRAW}, initialis, start",
        plant("resume", "torch.manual_seed(args.seed)", "torch.manual_seed(0)", 1),
        plant("denoise", "    torch.manual_seed(args.seed)\n", "", 1),
    ),
    *kind(
        "a draw too many",
        _DRAW,
        # What torch draws goes into the next shuffle, and into the next noise.
        plant("flips", "    scheduler.step()\n", "    scheduler.step()\n    torch.rand(1)\n", 5),
        plant("triplets", "        losses = []\n", "        losses = []\n        torch.randperm(3)\n", 1),
        plant("mnist_weighted", "            total += (t", "            np.random.rand()\n            total += (t", 2),
    ),
    *kind(
        "noise of each rank's own",
        f"{_DRAW}, ranks",
        plant(
            "gan",
            "torch.randn(imgs.size(0), opt.latent_dim).cuda()",
            "torch.randn(imgs.size(0), opt.latent_dim,\n"
            "                        generator=torch.Generator().manual_seed(ddp.rank())).cuda()",
            1,
        ),
        fails=True,
    ),
]
